"""Engines whose step times and acceptance are known, with the traffic that they serve: what is
observed of them, and what is true."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate

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

    def _drawn_steps(self, rng: np.random.Generator, requests: int, drafts: int, steps: int):
        """Of each step and request: whether it is new, its context, verified and accepted draft
        tokens."""
        shape, has_passes = (steps, requests), self.found is None
        has_draft = has_passes or rng.random(shape) < self.found
        there = self.longest if has_passes else rng.integers(1, self.longest + 1, shape)
        drafted = np.full(shape, np.where(has_draft, np.minimum(there, drafts), 0))
        rates = np.resize(list(self.rates.values()), requests)
        accepted = np.minimum(rng.geometric(1 - rates, shape) - 1, drafted)
        answers = rng.integers(1, 2 * self.answer, (steps + 1, requests))
        is_new, context = np.zeros((steps + 1, requests), dtype=bool), np.empty(shape, dtype=int)
        left, length = answers[steps], self.prompt + rng.integers(0, self.answer, requests)
        for step in range(steps):
            drafted[step, is_new[step]] = accepted[step, is_new[step]] = 0
            context[step] = length
            left, length = left - 1 - accepted[step], length + 1 + accepted[step]
            ends = is_new[step + 1] = left <= 0
            left, length = np.where(ends, answers[step], left), np.where(ends, self.prompt, length)
        return is_new[:steps], context, drafted, accepted

    def serve(
        self, observation: Observation | None, requests: int, length: int, steps: int, seed: int
    ) -> float:
        """The same, of so many steps, which go to observation."""
        rng, drafts = np.random.default_rng(seed), max(length, 0)
        is_new, context, drafted, accepted = self._drawn_steps(rng, requests, drafts, steps)
        prefills, tokens, out = is_new.sum(1), context.sum(1), (1 + accepted).sum(1)
        fed = (~is_new + drafted).sum(1) + self.prompt * prefills
        seconds = self.seconds(fed, requests, tokens, prefills > 0, drafted.any(1), length)
        noise = self.noise * rng.standard_normal(steps)
        seconds *= np.exp([*accumulate(noise, lambda stall, new: 0.7 * stall + new)])
        seconds[rng.random(steps) < STALL_SHARE] *= 3.0
        if observation is not None:
            columns = np.stack([seconds, prefills, tokens, fed, drafted.sum(1), out], axis=1)
            passes = max(length, 1) * (self.found is None)
            sizes = [
                StepSize(
                    took, requests, requests - new, kv, fed, verified, said, new, new * self.prompt,
                    passes,
                )
                for took, new, kv, fed, verified, said in columns.tolist()
            ]  # fmt: skip
            observation.add_steps([drafts] * steps, sizes)
            names = np.full(is_new.shape, np.resize(list(self.rates), requests))
            rows = (each[~is_new].tolist() for each in (names, drafted, accepted))
            observation.add_outcomes(
                (DraftOutcome(name, drafts, d, a), n)
                for (name, d, a), n in Counter(zip(*rows, strict=True)).items()
            )
            arrived = int(prefills.sum())
            observation.arrivals.requests += arrived
            observation.arrivals.prompt_tokens += arrived * self.prompt
            observation.arrivals.seconds += float(seconds.sum())
        return float(out.sum() / seconds.sum())


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
