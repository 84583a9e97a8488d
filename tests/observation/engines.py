"""Engines whose step times and acceptance are known, with the traffic that they serve: what is
observed of them, and what is true."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from smartspec.observation.forecast import OFF
from smartspec.observation.records import DraftOutcome, Observation, StepSize

SETUP = {
    "engine": "vllm", "version": "0.33.0", "model": "toy-8b", "method": "eagle3",
    "draft_model": "head", "dtype": "bf16", "quantization": "None", "device": "NVIDIA H100",
    "parallel": [1], "max_requests": 256, "max_batched_tokens": 8192,
}  # fmt: skip
STALL_SHARE = 0.005  # of steps, which take three times as long


@dataclass(frozen=True)
class Engine:
    """Seconds: of a step, per fed token up to the bend and beyond it, per request, per token in the
    KV, for prefill, for drafts in a step, of a draft pass. found: chance that a lookup finds a
    draft, None where a model drafts. rates: acceptance of a draft token, by class of requests, with
    as many requests each. prompt, answer: tokens of a request, in the mean. noise: of a step's
    time. lookup: share of a step that a server without speculation saves."""

    constant: float
    per_token: float
    beyond: float
    bend: int
    per_request: float
    per_context: float
    mixed: float
    drafting: float
    per_pass: float
    found: float | None
    rates: dict[str, float]
    prompt: int
    answer: int
    noise: float
    longest: int
    lookup: float
    platform: str = "cpu"

    @staticmethod
    def drawn(rng: np.random.Generator, has_passes: bool) -> "Engine":
        constant, bend = rng.uniform(4e-3, 40e-3), int(rng.choice([6, 16, 40, 200]))
        shares = rng.uniform(0, [0.03, 1.2, 0.03, 2e-5, 0.15, 0.15, 0.12])
        per_token, beyond, per_request, per_context, mixed, drafting, per_pass = constant * shares
        return Engine(
            constant, per_token, beyond / bend, bend, per_request, per_context, mixed, drafting,
            per_pass * has_passes, None if has_passes else rng.uniform(0.2, 0.9),
            {"": rng.uniform(0.3, 0.9)}, int(rng.integers(20, 400)), int(rng.integers(20, 300)),
            rng.uniform(0.01, 0.08), int(rng.integers(2, 7)),
            rng.uniform(0.0, 0.1) * (not has_passes),
        )  # fmt: skip

    @property
    def setup(self) -> dict:
        has_passes = self.found is None
        return SETUP | {
            "has_passes": has_passes, "longest": self.longest, "platform": self.platform,
        }  # fmt: skip

    def seconds(self, fed, requests, context, is_mixed, is_drafting, length: int):
        """Of a step with such drafts, without noise."""
        passes = 0 if length == OFF else max(length, 1)
        curve = self.per_token * fed + self.beyond * np.maximum(fed - self.bend, 0)
        rest = self.per_request * requests + self.per_context * context
        kinds = self.mixed * is_mixed + self.drafting * is_drafting
        whole = self.constant + curve + rest + kinds + self.per_pass * passes
        return whole * (1.0 - self.lookup * (length == OFF))

    def speed(self, requests: int, length: int) -> float:
        """Tokens per second of so many requests at a time, each followed by the next, in the long
        run. Where a model drafts, and contexts cost nothing."""
        (rate,), drafts = self.rates.values(), max(length, 0)
        mean = sum(rate**d for d in range(drafts + 1))
        prefills = np.random.default_rng(5).poisson(requests * mean / self.answer, 20_000)
        decoding = np.maximum(requests - prefills, 0)
        fed = decoding * (1 + drafts) + prefills * self.prompt
        seconds = self.seconds(fed, requests, 0, prefills > 0, drafts > 0, length)
        emitted = np.mean(decoding * mean + prefills)
        return float(emitted / np.mean(seconds) / (1 + 2 * STALL_SHARE))

    def serve(
        self, observation: Observation | None, requests: int, length: int, steps: int, seed: int
    ) -> float:
        """The same, of so many steps, which go to observation."""
        rng, emitted, total, stall = np.random.default_rng(seed), 0, 0.0, 0.0
        names = np.resize(list(self.rates), requests)
        rates = np.resize(list(self.rates.values()), requests)
        drafts, has_passes = max(length, 0), self.found is None
        left = rng.integers(1, 2 * self.answer, requests)  # tokens to come
        context = self.prompt + rng.integers(0, self.answer, requests)
        sizes, outcomes, is_new = [], Counter(), np.zeros(requests, dtype=bool)
        for _ in range(steps):
            has_draft = ~is_new & (has_passes or rng.random(requests) < self.found)
            there = self.longest if has_passes else rng.integers(1, self.longest + 1, requests)
            drafted = np.where(has_draft, np.minimum(there, drafts), 0)
            accepted = np.minimum(rng.geometric(1 - rates) - 1, drafted)
            prefills, tokens = int(is_new.sum()), int(context.sum())
            fed = int((1 + drafted[~is_new]).sum() + self.prompt * prefills)
            seconds = self.seconds(fed, requests, tokens, prefills > 0, drafted.any(), length)
            out = int((1 + accepted).sum())
            emitted += out
            stall = 0.7 * stall + self.noise * rng.standard_normal()
            seconds *= float(np.exp(stall)) * (3.0 if rng.random() < STALL_SHARE else 1.0)
            total += seconds
            sizes.append(
                StepSize(
                    seconds, requests, requests - prefills, tokens, fed, int(drafted.sum()), out,
                    prefills, prefills * self.prompt, max(length, 1) * has_passes,
                )
            )  # fmt: skip
            rows = (each[~is_new].tolist() for each in (names, drafted, accepted))
            outcomes.update(zip(*rows, strict=True))
            left, context = left - 1 - accepted, context + 1 + accepted
            is_new = left <= 0
            left = np.where(is_new, rng.integers(1, 2 * self.answer, requests), left)
            context = np.where(is_new, self.prompt, context)
        if observation is not None:
            observation.add_steps([drafts] * steps, sizes)
            observation.add_outcomes(
                (DraftOutcome(name, drafts, d, a), n) for (name, d, a), n in outcomes.items()
            )
            arrived = sum(size.prefills for size in sizes)
            observation.arrivals.requests += arrived
            observation.arrivals.prompt_tokens += arrived * self.prompt
            observation.arrivals.seconds += total
        return emitted / total


# Bound by memory up to 256 tokens, beyond that by arithmetic.
KNOWN = Engine(
    6e-3, 4e-6, 24e-6, 256, 8e-6, 0.0, 1e-3, 0.0, 4e-4, None, {"": 0.7}, 100, 200, 0.02, 5, 0.0,
    "gpu",
)  # fmt: skip


def observe(cells, *, steps=400, setup=None, **changes) -> Observation:
    """Of an engine like KNOWN. cells: (requests, draft length) that it served."""
    engine = replace(KNOWN, **changes)
    found = Observation(engine.setup | (setup or {}))
    for requests, length in cells:
        engine.serve(found, requests, length, steps, seed=10 * requests + length)
    return found
