"""What steps take, learned from the steps themselves: vLLM's scheduler can run no passes of its own to measure them.

A set-up that is new gets its cost model from its first steps, which try all lengths in turn (see trial_length). From
then on the controller corrects it, and it is fitted anew, ever more seldom, and kept for the next start.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from smartspec.control import CostCurve, LatencyModel, ProfileSample

TRIAL_STEPS = 32  # decoding steps until costs are known
REPETITIONS = 5  # kept of every size
MAX_SIZES = 2000
GUESS = CostCurve.linear(0.02, 0.0005)


@dataclass(frozen=True)
class StepSize:
    """A step without prefill, or with nothing else. depth: draft tokens its draft passes made (0: none ran, but the
    one that keeps a drafter's KV in step, which every step has)."""

    rows: int
    fed_tokens: int
    scored_tokens: int
    depth: int = 0


class StepCosts:
    """Measured steps by size. has_passes: whether drafts are made by passes of a model, which then have a cost."""

    def __init__(self, has_passes: bool):
        self.has_passes = has_passes
        self.num_decoding = 0
        self._seconds: dict[StepSize, deque[tuple[int, float]]] = {}

    def add(self, size: StepSize, context_tokens: int, seconds: float) -> None:
        """Note a measured step. context_tokens: in the KV of all its rows."""
        if size not in self._seconds and len(self._seconds) >= MAX_SIZES:
            return
        self._seconds.setdefault(size, deque(maxlen=REPETITIONS)).append((context_tokens, seconds))
        self.num_decoding += size.scored_tokens == size.fed_tokens

    @property
    def are_known(self) -> bool:
        return self.num_decoding >= TRIAL_STEPS

    def trial_length(self, lengths: Sequence[int]) -> int:
        """Draft length of the next step of a trial, of these ascending ones: the first, the last, the second, ... for
        two steps each, so that steps are seen that verify drafts without making new ones, and the other way round."""
        turn = (self.num_decoding // 2) % len(lengths)
        return lengths[turn // 2 if turn % 2 == 0 else -1 - turn // 2]

    def fit(self) -> LatencyModel:
        """The model of the steps seen. Where drafts have passes, seconds are split by least squares into what the
        tokens of the target and the rows of draft passes beyond the first explain."""
        samples = [(size, *map(median, zip(*seen, strict=True))) for size, seen in self._seconds.items()]
        lengths = [context / size.rows for size, context, _ in samples]
        if samples and max(lengths) < 2.0 * min(lengths):  # nothing tells what a context costs from what a step costs
            samples = [(size, 0.0, seconds) for size, _, seconds in samples]
        if not samples:
            return LatencyModel(GUESS, (CostCurve.linear(GUESS.constant / 10, 0.0),) if self.has_passes else ())
        if not self.has_passes:
            return LatencyModel.fit([_profile_sample(*sample, 0.0) for sample in samples])
        constant, per_row = self._pass_seconds(samples)
        target = [
            _profile_sample(size, context, seconds, size.depth * (constant + per_row * size.rows))
            for size, context, seconds in samples
        ]
        return LatencyModel(CostCurve.fit(target), (CostCurve.linear(constant, per_row),))

    def _pass_seconds(self, samples: list) -> tuple[float, float]:
        """Seconds of a draft pass: constant, and per row; neither negative, and never more than half a step's."""
        sizes = [(1.0, size.rows, size.fed_tokens, size.depth, size.depth * size.rows) for size, _, _ in samples]
        seconds = np.array([seconds for _, _, seconds in samples])
        coefficients = np.linalg.lstsq(np.array(sizes) / seconds[:, None], np.ones_like(seconds), rcond=None)[0]
        constant, per_row = np.maximum(coefficients[3:], 0.0).tolist()
        charged = [size.depth * (constant + per_row * size.rows) / seconds for size, _, seconds in samples]
        excess = max(2.0 * max(charged), 1.0)
        return max(constant / excess, 1e-6), per_row / excess


def _profile_sample(size: StepSize, context_tokens: float, seconds: float, draft_seconds: float) -> ProfileSample:
    return ProfileSample(
        size.fed_tokens, int(context_tokens), size.rows, seconds - draft_seconds, scored_tokens=size.scored_tokens
    )
