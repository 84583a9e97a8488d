"""Costs of steps, learned from the steps themselves: a scheduler of vLLM cannot run passes just to
measure them.

A new set-up gets its cost model from its first steps, which try all lengths in turn (see
next_trial). After that the controller corrects the model. The model is also fitted again, less and
less often, and stored for the next start.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from smartspec.control import CostCurve, LatencyModel, ProfileSample

TRIAL_STEPS = 32  # decoding steps without prefill until costs are known
# decoding steps until then, if most have prefill, which hides what a draft token costs
MIXED_TRIAL_STEPS = 128
REPETITIONS = 5  # kept of every size
MAX_SIZES = 2000
GUESS = CostCurve.linear(0.02, 0.0005)


@dataclass(frozen=True)
class StepSize:
    """The size of a step, on which its time depends."""

    rows: int  # requests that decode, and prefills
    fed_tokens: int
    scored_tokens: int
    passes: int = 0  # draft passes that it ran, beyond those of every step


class StepCosts:
    """Measured steps by size. has_passes: true if drafts are made by passes of a model, which then
    have a cost."""

    def __init__(self, has_passes: bool):
        self.has_passes = has_passes
        self.num_decoding = 0  # steps without prefill
        self._num_mixed = 0
        self._turn = self._turn_start = 0  # of a trial; the number of steps at its start
        self._seconds: dict[StepSize, deque[tuple[int, float]]] = {}

    def add(self, size: StepSize, context_tokens: int, seconds: float) -> None:
        """Note a measured step. context_tokens: in the KV of all its rows."""
        if size not in self._seconds and len(self._seconds) >= MAX_SIZES:
            return
        self._seconds.setdefault(size, deque(maxlen=REPETITIONS)).append((context_tokens, seconds))
        self.num_decoding += size.scored_tokens == size.fed_tokens

    def add_mixed(self, size: StepSize, context_tokens: int, seconds: float) -> None:
        """Note a step of the trial in which some requests decode beside prefill."""
        self.add(size, context_tokens, seconds)
        self._num_mixed += 1

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
        """Return the model of the measured steps. If drafts have passes, steps that verify drafts
        of another length than they make tell the seconds of passes from the target's."""
        samples = [
            (size, *map(median, zip(*times, strict=True))) for size, times in self._seconds.items()
        ]
        lengths = [context / size.rows for size, context, _ in samples]
        # contexts cannot be told from the constant cost of a step
        if samples and max(lengths) < 2.0 * min(lengths):
            samples = [(size, 0.0, seconds) for size, _, seconds in samples]
        if not samples:
            return LatencyModel(
                GUESS, (CostCurve.linear(GUESS.constant / 10, 0.0),) if self.has_passes else ()
            )
        passes = np.array(
            [(size.passes, size.passes * size.rows) for size, _, _ in samples], dtype=float
        )
        target, (constant, per_row) = CostCurve.fit_beside(
            [_profile_sample(*sample) for sample in samples], passes
        )
        drafts = (CostCurve.linear(max(constant, 1e-6), per_row),) if self.has_passes else ()
        return LatencyModel(target, drafts)


def _profile_sample(size: StepSize, context_tokens: float, seconds: float) -> ProfileSample:
    return ProfileSample(
        size.fed_tokens, int(context_tokens), size.rows, seconds, scored_tokens=size.scored_tokens
    )
