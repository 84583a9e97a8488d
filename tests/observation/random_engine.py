"""Engines that are drawn at random, with the traffic that they serve: what is observed of them, and
what is true."""

from dataclasses import dataclass

import numpy as np
from known_engine import SETUP

from smartspec.observation.forecast import OFF
from smartspec.observation.records import DraftOutcome, Observation, StepSize


@dataclass(frozen=True)
class Engine:
    """Seconds: of a step, per fed token up to the bend and beyond it, per request, per token in the
    KV, for prefill, for drafts in a step, of a draft pass. found: chance that a lookup finds a
    draft, None where a model drafts. rate: acceptance of a draft token. prompt, answer: tokens of a
    request, in the mean. noise: of a step's time. lookup: share of a step that a server without
    speculation saves."""

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
    rate: float
    prompt: int
    answer: int
    noise: float
    longest: int
    lookup: float

    @staticmethod
    def drawn(rng: np.random.Generator, has_passes: bool) -> "Engine":
        constant, bend = rng.uniform(4e-3, 40e-3), int(rng.choice([6, 16, 40, 200]))
        shares = rng.uniform(0, [0.03, 1.2, 0.03, 2e-5, 0.15, 0.15, 0.12])
        per_token, beyond, per_request, per_context, mixed, drafting, per_pass = constant * shares
        return Engine(
            constant, per_token, beyond / bend, bend, per_request, per_context, mixed, drafting,
            per_pass * has_passes, None if has_passes else rng.uniform(0.2, 0.9),
            rng.uniform(0.3, 0.9), int(rng.integers(20, 400)), int(rng.integers(20, 300)),
            rng.uniform(0.01, 0.08), int(rng.integers(2, 7)),
            rng.uniform(0.0, 0.1) * (not has_passes),
        )  # fmt: skip

    @property
    def setup(self) -> dict:
        return SETUP | {
            "has_passes": self.found is None,
            "longest": self.longest,
            "platform": "cpu",
        }

    def seconds(
        self, fed: int, requests: int, context: int, is_mixed: bool, is_drafting: bool, passes: int
    ) -> float:
        curve = self.per_token * fed + self.beyond * max(fed - self.bend, 0)
        rest = self.per_request * requests + self.per_context * context
        return (
            self.constant
            + curve
            + rest
            + self.mixed * is_mixed
            + self.drafting * is_drafting
            + self.per_pass * passes
        )

    def serve(
        self, observation: Observation | None, requests: int, length: int, steps: int, seed: int
    ) -> float:
        """Tokens per second of so many requests at a time, each followed by the next. Steps go to
        observation."""
        rng, emitted, total, stall = np.random.default_rng(seed), 0, 0.0, 0.0
        drafts = max(length, 0)
        left = rng.integers(1, 2 * self.answer, requests)  # tokens to come
        context = self.prompt + rng.integers(0, self.answer, requests)
        sizes, outcomes, is_new = [], [], np.zeros(requests, dtype=bool)
        for _ in range(steps):
            has_draft = ~is_new & (
                True if self.found is None else rng.random(requests) < self.found
            )
            there = (
                self.longest if self.found is None else rng.integers(1, self.longest + 1, requests)
            )
            drafted = np.where(has_draft, np.minimum(there, drafts), 0)
            accepted = np.minimum(rng.geometric(1 - self.rate, requests) - 1, drafted)
            prefills, fed = (
                int(is_new.sum()),
                int((1 + drafted[~is_new]).sum() + self.prompt * is_new.sum()),
            )
            passes = 0 if length == OFF or self.found is not None else max(length, 1)
            seconds = self.seconds(
                fed, requests, int(context.sum()), prefills > 0, bool(drafted.any()), passes
            )
            out = int((1 + accepted).sum())
            emitted += out
            stall = 0.7 * stall + self.noise * rng.standard_normal()
            seconds *= 1.0 - self.lookup * (length == OFF)
            seconds *= float(np.exp(stall)) * (3.0 if rng.random() < 0.005 else 1.0)
            total += seconds
            if observation is not None:
                sizes.append(
                    StepSize(
                        seconds, requests, requests - prefills, int(context.sum()), fed,
                        int(drafted.sum()), out, prefills, prefills * self.prompt, passes,
                    )
                )  # fmt: skip
                rows = zip(drafted[~is_new].tolist(), accepted[~is_new].tolist(), strict=True)
                outcomes += [(DraftOutcome("", drafts, d, a), 1) for d, a in rows]
                observation.arrivals.requests += prefills
                observation.arrivals.prompt_tokens += prefills * self.prompt
                observation.arrivals.seconds += seconds
            left, context = left - 1 - accepted, context + 1 + accepted
            is_new = left <= 0
            left = np.where(is_new, rng.integers(1, 2 * self.answer, requests), left)
            context = np.where(is_new, self.prompt, context)
        if observation is not None:
            observation.add_steps([drafts] * steps, sizes)
            observation.add_outcomes(outcomes)
        return emitted / total
