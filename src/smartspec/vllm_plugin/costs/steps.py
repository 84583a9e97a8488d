"""Costs of steps, learned from the steps themselves: a scheduler of vLLM cannot run passes just to
measure them.

A new set-up gets its cost model from its first steps, which try all lengths in turn (see
next_trial). After that the controller corrects the model. The model is also fitted again, less and
less often, and stored for the next start.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from smartspec.control import CostCurve, LatencyModel
from smartspec.observation.records import COLUMN, StepSize, sums_of
from smartspec.observation.step_times import MODEL_NOISE, CellTimes

TRIAL_STEPS = 32  # decoding steps without prefill until costs are known
# decoding steps until then, if most have prefill, which hides what a draft token costs
MIXED_TRIAL_STEPS = 128
REPETITIONS = 5  # kept of every size
MAX_SIZES = 500  # a fit to more takes a tenth of a second
GUESS = CostCurve.linear(0.02, 0.0005)


class StepCosts:
    """Measured steps by size. has_passes: true if drafts are made by passes of a model, which then
    have a cost."""

    def __init__(self, has_passes: bool):
        self.has_passes = has_passes
        self.num_decoding = 0  # steps without prefill
        self._num_mixed = 0
        self._turn = self._turn_start = 0  # of a trial; the number of steps at its start
        self._steps: dict[tuple[int, ...], deque[StepSize]] = {}

    def add(self, step: StepSize) -> None:
        """Note a measured step. passes: those beyond the ones that every step has. Steps in which
        some requests decode beside prefill are wanted in a trial alone."""
        size = step.requests, step.fed_tokens, step.prefills, step.passes
        if size not in self._steps and len(self._steps) >= MAX_SIZES:
            return
        self._steps.setdefault(size, deque(maxlen=REPETITIONS)).append(step)
        self.num_decoding += not step.prefills
        self._num_mixed += step.prefills > 0 and step.decoding > 0

    @property
    def is_complete(self) -> bool:
        """True once there are enough steps for a first fit."""
        return (
            self.num_decoding >= TRIAL_STEPS
            or self.num_decoding + self._num_mixed >= MIXED_TRIAL_STEPS
        )

    def next_trial(self, lengths: Sequence[int]) -> int:
        """Return the draft length of the next decision of a trial, out of these ascending ones: the
        first, the last, the second, ... Each is for two steps, or as many as share a decision: they
        are noted together, later. So some steps verify drafts without making new ones, and some
        only make drafts."""
        num_steps = self.num_decoding + self._num_mixed
        if num_steps >= self._turn_start + 2:
            self._turn, self._turn_start = self._turn + 1, num_steps
        turn = self._turn % len(lengths)
        return lengths[turn // 2 if turn % 2 == 0 else -1 - turn // 2]

    def fit(self) -> LatencyModel:
        """Return the model of the measured steps, fitted as observations are. If drafts have
        passes, steps that verify drafts of another length than they make tell the seconds of passes
        from the target's."""
        if not self._steps:
            draft = CostCurve.linear(GUESS.constant / 10, 0.0)
            return LatencyModel(GUESS, (draft,) if self.has_passes else ())
        means = np.array([np.median(sums_of(list(some)), axis=0) for some in self._steps.values()])
        means[:, COLUMN["drafting"]] = 0.0
        contexts = means[:, COLUMN["context_tokens"]] / means[:, COLUMN["requests"]]
        if contexts.max() < 2.0 * contexts.min():  # they cannot be told from a step's constant cost
            means[:, COLUMN["context_tokens"]] = 0.0
        noise = np.full(len(means), MODEL_NOISE)
        return CellTimes(means, noise, ridge=0.0).fit().latency(self.has_passes)
