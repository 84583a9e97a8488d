"""Which draft tokens are right, and what the target says: tokens are made of the number of the request."""

from typing import Protocol

import numpy as np

from smartspec.sim.world.acceptance import GroundTruthAcceptance, count_leading
from smartspec.sim.world.class_spec import parse_classes

_LINE = list(range(10, 2010))  # what targets say: numbers in order
_PERIOD = 1000


class Truth(Protocol):
    """Requests are named by their numbers. positions: int [R], tokens that each has emitted."""

    def begin(self, number: int) -> None: ...

    def end(self, number: int) -> None: ...

    def num_right(self, numbers: np.ndarray, positions: np.ndarray, now: float) -> np.ndarray:
        """Leading right tokens of the longest draft there, int [R]."""

    def num_drafted(self, numbers: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Tokens of the longest draft there, int [R]."""

    def confidence(self, numbers: np.ndarray, positions: np.ndarray, now: float) -> np.ndarray:
        """The drafter's confidence in each token: float [R, K]."""

    def tokens(self, number: int, position: int, count: int) -> list[int]:
        """What the target says there."""


class StatedTruth:
    """Acceptance by a rule, as the simulator has it (docs/simulation.md): it may fall with depth, differ by request,
    and change in time.

    acceptance: as `simulate --acceptance`. found_share: of positions at which a drafter without a model finds a draft.
    """

    def __init__(self, acceptance: str, max_draft_tokens: int, seed: int, found_share: float = 1.0):
        from dataclasses import replace

        self._classes = tuple(replace(c, found_share=found_share) for c in parse_classes(acceptance))
        self._truth = GroundTruthAcceptance(self._classes, max_draft_tokens, seed=seed)

    def begin(self, number: int) -> None:
        self._truth.begin(number, number % len(self._classes))

    def end(self, number: int) -> None:
        self._truth.end(number)

    def num_right(self, numbers: np.ndarray, positions: np.ndarray, now: float) -> np.ndarray:
        right = self._truth.uniform(numbers, positions) < self._truth.conditional(numbers, now, positions)
        return np.minimum(count_leading(right), self.num_drafted(numbers, positions))

    def num_drafted(self, numbers: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return self._truth.found(numbers, positions).lengths

    def confidence(self, numbers: np.ndarray, positions: np.ndarray, now: float) -> np.ndarray:
        return self._truth.confidence(numbers, positions, self._truth.conditional(numbers, now, positions))[0]

    def tokens(self, number: int, position: int, count: int) -> list[int]:
        first = (31 * number + position) % _PERIOD
        return _LINE[first : first + count]
