"""The interface of all policies: from estimates of acceptance and time to the number of draft tokens of each request.

Every policy speculates without loss: lengths depend on load, history and confidence, never on tokens that were sampled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from smartspec.control.expected_tree import expected_trees
from smartspec.control.records import (
    MAX_TREE_NODES,
    BatchView,
    Drafted,
    DrafterSpec,
    Outcome,
    Plan,
    of_drafter,
)

LEARN_STEPS = 16


class Acceptance(Protocol):
    """Estimates that a policy may use beside the survival of drafts: see acceptance.estimator.AcceptanceEstimator."""

    max_draft_tokens: int

    @property
    def rank_chances(self) -> Mapping[int, np.ndarray]: ...

    def has_confidence(self, drafter: int) -> bool: ...

    def odds_given_confidence(self, drafter: int, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...

    def survival(self, view: BatchView) -> np.ndarray: ...


class Latency(Protocol):
    """The expected times of a step, in seconds: see latency.model.LatencyModel."""

    @property
    def host_seconds(self) -> float: ...

    def target_seconds(self, view: BatchView, num_draft_tokens: np.ndarray) -> np.ndarray: ...

    def off_seconds(self, view: BatchView) -> float: ...

    def profiled_seconds(self, view: BatchView, num_draft_tokens: np.ndarray, prefill_tokens: float) -> np.ndarray: ...

    def draft_seconds(self, view: BatchView, drafter: np.ndarray, max_depth: int, width: int = 1) -> np.ndarray: ...


@dataclass(frozen=True)
class Estimates:
    """The estimates that a decision is made from, for R rows and D drafters."""

    drafters: tuple[DrafterSpec, ...]
    # float [D, R, K], by drafter, the probability that the j-th node of a row's draft is reached and accepted (of a
    # chain: that the first j tokens all are).
    survival: np.ndarray
    latency: Latency
    acceptance: Acceptance | None = None  # the estimator of survival, None where there is none (perfect estimates)
    width: int = 1  # of drafts that would be made in passes, see Plan
    depths: np.ndarray | None = None  # int [D, R, K], passes that each node of them takes, None where all are chains
    # For the drafters that make trees, by number: float [ranks], the chance that a node's second, third, ... child is
    # right where its first is wrong. Without them only chains can be planned.
    rank_chances: Mapping[int, np.ndarray] = field(default_factory=dict)
    num_learned: int | None = None  # times that the estimators have learned, None where that is not known

    def of_width(self, width: int) -> "Estimates":
        """Return the same estimates where drafters that make trees make them so wide; itself where there are none."""
        if width == self.width or not self.rank_chances:
            return self
        if width not in self._by_width:
            self._by_width[width] = self._to_trees(width)
        return self._by_width[width]

    @cached_property
    def _by_width(self) -> dict[int, "Estimates"]:
        return {}

    def _to_trees(self, width: int) -> "Estimates":
        survival = self.survival.copy()
        depths = np.broadcast_to(np.arange(1, self.max_draft_tokens + 1), survival.shape).copy()
        for number, chances in self.rank_chances.items():
            survival[number], depths[number] = expected_trees(self.survival[number], chances[: width - 1])
            survival[number, :, MAX_TREE_NODES:] = 0.0
        return self.with_survival(survival, width, depths)

    def with_survival(self, survival: np.ndarray, width: int = 1, depths: np.ndarray | None = None) -> "Estimates":
        """Return the same estimates with another survival of drafts."""
        return Estimates(self.drafters, survival, self.latency, self.acceptance, width, depths, self.rank_chances)

    def passes_of(self, drafter: np.ndarray) -> np.ndarray:
        """Return the passes that the j-th node of each row's draft takes, 0 where it needs none: int [R, K]. drafter:
        int [R]."""
        positions = np.arange(1, self.max_draft_tokens + 1)
        passes = positions if self.depths is None else of_drafter(self.depths, drafter)
        return self.has_passes(drafter)[:, None] * passes

    def survival_of(self, drafter: np.ndarray) -> np.ndarray:
        """Return the survival of the drafter of each row (int [R]): float [R, K]."""
        return of_drafter(self.survival, drafter)

    def has_passes(self, drafter: np.ndarray) -> np.ndarray:
        """Return True for each row whose drafter (int [R]) makes drafts in passes of a model: bool [R]."""
        return self._has_passes[drafter]

    @cached_property
    def _has_passes(self) -> np.ndarray:
        return np.array([*(drafter.has_passes for drafter in self.drafters), False])  # the last: of no drafter, -1

    @cached_property
    def models(self) -> list[int]:
        """The numbers of the drafters that draft in passes of a model."""
        return [number for number, drafter in enumerate(self.drafters) if drafter.has_passes]

    @property
    def max_draft_tokens(self) -> int:
        return self.survival.shape[2]


class EstimatesOfView(Estimates):
    """The estimates of a step. Survival is computed when it is first needed: for a few drafts that exist, it is not."""

    acceptance: Acceptance
    _view: BatchView

    def __init__(
        self,
        drafters: tuple[DrafterSpec, ...],
        view: BatchView,
        latency: Latency,
        acceptance: Acceptance,
        num_learned: int | None = None,
    ):
        self.__dict__.update(drafters=drafters, latency=latency, acceptance=acceptance, depths=None, _view=view)
        self.__dict__.update(num_learned=num_learned)

    @cached_property
    def survival(self) -> np.ndarray:
        return self.acceptance.survival(self._view)

    @cached_property
    def rank_chances(self) -> Mapping[int, np.ndarray]:
        return self.acceptance.rank_chances

    @property
    def max_draft_tokens(self) -> int:
        return self.acceptance.max_draft_tokens


class Policy:
    """Decides draft lengths. A policy that learns keeps its own state. All methods but plan have a default."""

    needs: tuple[str, ...] = ()  # names of Outcome.extras that it cannot do without
    uses_estimates = True  # if False, the controller learns from few steps, for people who watch the server
    # Steps that the controller learns from together. After a target pass the code of learning is in no cache, so that a
    # run of it costs more than its arithmetic. Besides, nothing must be learned from the first step alone: one rejected
    # draft could end drafting at the start.
    learn_steps = LEARN_STEPS

    def queries(self, num_rows: int) -> bool:
        """Return True if drafters are queried for drafts in a step of so many decoding requests. Otherwise only drafts
        that cost nothing are made."""
        return True

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        """Return the number of tokens to draft for each row, and the drafters. Not called where no row can have a
        draft."""
        raise NotImplementedError

    def cut(self, plan: Plan, drafted: Drafted, survival: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the number of drafted tokens to verify: int [R], at most drafted.lengths.

        survival: returns that of the drafts as they were made, with their confidence: float [R, K], as in Estimates.

        The decision to keep a token must not depend on anything that is known only after the token is drawn: the
        confidence of the tokens after it, the length of its draft and, if a StopRule couples rows, the same of other
        rows. Prices must not depend on drawn tokens either. Otherwise the output is biased. Where the choice for a row
        depends on other rows, all their tokens must have one order in which they can be drawn: the decision about a
        token may depend only on those before it.
        """
        return drafted.lengths

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        """Learn from a finished step, any number of steps later and in any order. Where no row could have a draft, the
        plan is the controller's own."""

    def end(self, request_id: int) -> None:
        """Drop the estimates of a request that has ended; unknown ones are ignored."""

    def state(self) -> dict:
        """Return the policy's own state for people who watch the server, JSON-able."""
        return {}


@lru_cache
def no_drafts(num_rows: int) -> Plan:
    """Return the plan of plain decoding; the same object for every caller."""
    lengths, drafter = np.zeros(num_rows, dtype=np.int64), no_drafter(num_rows)
    lengths.flags.writeable = drafter.flags.writeable = False
    return Plan(lengths=lengths, drafter=drafter, is_whole=True)


def no_drafter(num_rows: int) -> np.ndarray:
    """Return the drafter of rows that do not draft: int [R], all -1."""
    return np.full(num_rows, -1)


def length_caps(view: BatchView, drafter: np.ndarray, max_draft_tokens: int) -> np.ndarray:
    """Return the longest draft that each row can have from its drafter (int [R]): int [R]."""
    caps = np.minimum(np.maximum(view.max_draft_tokens, 0), max_draft_tokens)
    return np.where(drafter >= 0, np.minimum(caps, of_drafter(view.draft_lengths, drafter)), 0)


def drafter_yields(view: BatchView, estimates: Estimates) -> np.ndarray:
    """Return the tokens expected to be accepted of the longest draft that each drafter can make: float [D, R]."""
    caps = np.minimum(view.draft_lengths, np.maximum(view.max_draft_tokens, 0))
    return (estimates.survival * (np.arange(estimates.max_draft_tokens) < caps[:, :, None])).sum(axis=2)


def model_free_first(view: BatchView, estimates: Estimates, yields: np.ndarray | None = None) -> np.ndarray:
    """Return the usual drafter of each row: int [R]. It is a model-free one where one has a draft, because it is free,
    else one with passes. Of several it is that of largest yield. yields: see drafter_yields; -1 excludes a drafter."""
    if len(estimates.drafters) < 2 and yields is None:
        return no_drafter(view.num_rows) + len(estimates.drafters)
    yields = drafter_yields(view, estimates) if yields is None else yields
    is_free = np.array([not drafter.has_passes for drafter in estimates.drafters])
    first = (estimates.max_draft_tokens + 1) * (is_free[:, None] & (view.draft_lengths > 0))
    return (yields + first).argmax(axis=0)


def expected_accepted(survival: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the expected accepted tokens of drafts of these lengths (int [R]): float [R]. survival: float [R, K]."""
    return (survival * (np.arange(survival.shape[1]) < lengths[:, None])).sum(axis=1)


def plan_of_lengths(view: BatchView, estimates: Estimates, lengths: np.ndarray | int) -> Plan:
    """Return the plan of drafts of these lengths (int [R], or one for all) from the usual drafter, cut to the longest
    that each row can have.

    Where they exceed view.draft_token_budget together, the longest are cut, to one length for all that are cut.
    """
    drafter = model_free_first(view, estimates)
    cut = np.minimum(length_caps(view, drafter, estimates.max_draft_tokens), lengths)
    if cut.sum() > view.draft_token_budget:
        ceilings = np.arange(estimates.max_draft_tokens + 1)
        totals = np.minimum(cut[:, None], ceilings).sum(axis=0)
        cut = np.minimum(cut, np.flatnonzero(totals <= view.draft_token_budget)[-1])
    return plan_by(drafter, cut)


def plan_by(drafter: np.ndarray, lengths: np.ndarray) -> Plan:
    """Return the plan of drafts of these lengths by these drafters, both int [R]. Rows of length 0 have no drafter."""
    return Plan(lengths=lengths, drafter=np.where(lengths > 0, drafter, -1))
