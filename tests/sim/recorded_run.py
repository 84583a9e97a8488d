"""A toy engine with known acceptance and time that writes a decision log: what a replay should find
can be counted."""

from pathlib import Path

import numpy as np
from drafter_cases import LOOKUP, MODEL, free_test_after
from factories import make_record, make_view, play_step

from smartspec.control import (
    BatchView,
    Controller,
    CostCurve,
    DecisionRecord,
    LatencyModel,
    LogHeader,
    Plan,
    StepSeconds,
)
from smartspec.core.policy_names import parse_policy

K = 5
TARGET, DRAFT = CostCurve.linear(0.02, 0.001), CostCurve.linear(0.001, 0.0001)
PROFILE, WITH_MODEL = LatencyModel(TARGET), LatencyModel(TARGET, (DRAFT,))
SLOWDOWN = 1.5  # the machine against its profile
HOST_SECONDS = 0.001


class ToyRun:
    """num_rows requests that run for ever, each with its own acceptance of drafts.

    chains: int [steps, R], how many draft tokens of each step would be accepted at most. records:
    what was logged.
    """

    def __init__(self, policy: str, num_steps: int, *, num_rows: int = 4, use_model: bool = False):
        self.drafter, self.profile = (MODEL, WITH_MODEL) if use_model else (LOOKUP, PROFILE)
        self.header = LogHeader("toy", policy, K, (self.drafter,), self.profile.to_dict())
        self.records: list[DecisionRecord] = []
        self.acceptance = np.linspace(0.4, 0.9, num_rows)
        random = np.random.default_rng(0)
        accepted = random.random((num_steps, num_rows, K)) < self.acceptance[:, None]
        self.chains = np.cumprod(accepted, axis=2).sum(axis=2)
        latency = LatencyModel.from_dict(self.profile.to_dict())
        self._controller = Controller(parse_policy(policy), K, latency, drafters=(self.drafter,))
        self._context = np.full(num_rows, 50)
        self._seen = np.zeros(num_rows, dtype=np.int64)
        for step in range(num_steps):
            self._step(float(step), self.chains[step])

    def write(self, path: Path) -> Path:
        lines = [self.header.to_json(), *(record.to_json() for record in self.records)]
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def emitted(self, length: int) -> int:
        """Tokens of all steps had every draft been of that length."""
        return int(np.minimum(self.chains, length).sum()) + self.chains.size

    def _view(self, now: float) -> BatchView:
        num_rows = len(self._context)
        drafts = (
            {"lag": self._context - self._seen} if self.drafter.has_passes else {"found_lengths": K}
        )
        return make_view(
            np.arange(num_rows) + 10,
            context_tokens=self._context,
            row_caps=K,
            now=now,
            **drafts,
        )

    def _step(self, now: float, chains: np.ndarray) -> None:
        view = self._view(now)

        def told(plan, verified):
            free = () if self.drafter.has_passes else (free_test_after(verified, chains, K),)
            return {"seconds": self.seconds(view, plan, verified), "free_tests": free}

        outcome = play_step(self._controller, view, chains, told)
        self.records.append(make_record(outcome, survival=np.ones((len(chains), K))))
        lengths = outcome.plan.lengths
        self._seen = np.where(lengths > 0, self._context + lengths, self._seen)
        self._context += outcome.accepted + 1
        self._seen = np.minimum(self._seen, self._context)

    def seconds(self, view: BatchView, plan: Plan, verified: np.ndarray) -> StepSeconds:
        """The true time of a step."""
        predicted = self.profile.predict(view, plan, verified)
        return StepSeconds(SLOWDOWN * predicted.draft, SLOWDOWN * predicted.target, HOST_SECONDS)
