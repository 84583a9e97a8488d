"""The estimates that a policy decides from: of acceptance and of time."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Protocol

import numpy as np

from smartspec.control.expected_tree import expected_trees
from smartspec.control.records import MAX_TREE_NODES, BatchView, DrafterSpec, of_drafter


class Acceptance(Protocol):
    """Estimates that a policy may use beside the survival of drafts: see
    acceptance.estimator.AcceptanceEstimator."""

    max_draft_tokens: int

    def has_confidence(self, drafter: int) -> bool: ...

    def odds_given_confidence(
        self, drafter: int, history: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]: ...


class Latency(Protocol):
    """The expected times of a step, in seconds: see latency.model.LatencyModel."""

    @property
    def host_seconds(self) -> float: ...

    def target_seconds(self, view: BatchView, num_draft_tokens: np.ndarray) -> np.ndarray: ...

    def off_seconds(self, view: BatchView) -> float: ...

    def profiled_seconds(
        self, view: BatchView, num_draft_tokens: np.ndarray, prefill_tokens: float
    ) -> np.ndarray: ...

    def draft_seconds(
        self, view: BatchView, drafter: np.ndarray, max_depth: int, width: int = 1
    ) -> np.ndarray: ...


class Estimates:
    """The estimates that a decision is made from, for R rows and D drafters.

    survival: float [D, R, K], by drafter, the probability that the j-th node of a row's draft is
    reached and accepted (of a chain: that the first j tokens all are); or a function that returns
    it, called when it is first needed. acceptance: the estimator of survival, None where there is
    none (perfect estimates). width: of drafts that would be made in passes, see Plan. depths: int
    [D, R, K], passes that each node of them takes, None where all are chains. rank_chances: for the
    drafters that make trees, by number: float [ranks], the chance that a node's second, third, ...
    child is right where its first is wrong; without them only chains can be planned. num_learned:
    times that the estimators have learned, None where that is not known.
    """

    def __init__(
        self,
        drafters: tuple[DrafterSpec, ...],
        survival: np.ndarray | Callable[[], np.ndarray],
        latency: Latency,
        acceptance: Acceptance | None = None,
        width: int = 1,
        depths: np.ndarray | None = None,
        rank_chances: Mapping[int, np.ndarray] | None = None,
        num_learned: int | None = None,
    ):
        self.drafters, self.latency, self.acceptance = drafters, latency, acceptance
        self.width, self.depths, self.num_learned = width, depths, num_learned
        self.rank_chances = rank_chances or {}
        self._survival = survival

    @cached_property
    def survival(self) -> np.ndarray:
        return self._survival() if callable(self._survival) else self._survival

    @property
    def max_draft_tokens(self) -> int:
        if self.acceptance is not None and callable(self._survival):
            return self.acceptance.max_draft_tokens  # without a call
        return self.survival.shape[2]

    def of_width(self, width: int) -> "Estimates":
        """Return the same estimates where drafters that make trees make them so wide; itself where
        there are none."""
        if width == self.width or not self.rank_chances:
            return self
        survival = self.survival.copy()
        depths = np.broadcast_to(np.arange(1, self.max_draft_tokens + 1), survival.shape).copy()
        for number, chances in self.rank_chances.items():
            survival[number], depths[number] = expected_trees(
                self.survival[number], chances[: width - 1]
            )
            survival[number, :, MAX_TREE_NODES:] = 0.0
        return Estimates(
            self.drafters, survival, self.latency, self.acceptance, width, depths, self.rank_chances
        )

    def passes_of(self, drafter: np.ndarray) -> np.ndarray:
        """Return the passes that the j-th node of each row's draft takes, 0 where it needs none:
        int [R, K]. drafter: int [R]."""
        positions = np.arange(1, self.max_draft_tokens + 1)
        passes = positions if self.depths is None else of_drafter(self.depths, drafter)
        return self.has_passes(drafter)[:, None] * passes

    def survival_of(self, drafter: np.ndarray) -> np.ndarray:
        """Return the survival of the drafter of each row (int [R]): float [R, K]."""
        return of_drafter(self.survival, drafter)

    def has_passes(self, drafter: np.ndarray) -> np.ndarray:
        """Return True for each row whose drafter (int [R]) makes drafts in passes of a model: bool
        [R]."""
        # the last: of no drafter, -1
        return np.array([*(each.has_passes for each in self.drafters), False])[drafter]

    @cached_property
    def models(self) -> list[int]:
        """The numbers of the drafters that draft in passes of a model."""
        return [number for number, drafter in enumerate(self.drafters) if drafter.has_passes]
