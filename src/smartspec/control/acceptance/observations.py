"""What finished steps say about acceptance: counts by row, several steps as one.

A few steps are learned from together. After a target pass, the code of learning is in no cache: a run of it costs more
than the number of its rows. A request has one row for every step it was in.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from smartspec.control.records import FreeTests, Outcome, depths_of

# A draft prefill may test hundreds of tokens at once; they say less about the next than fresh ones do.
MAX_FREE_TESTS = 16


def observed_positions(num_positions: int, tested: np.ndarray, accepted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which positions of the verified drafts were observed and which of them accepted: two bool [R, num_positions].

    tested, accepted: int [R], see records.Outcome.
    """
    positions = np.arange(num_positions)[:, None]
    successes = np.minimum(accepted, tested)
    return (positions < np.minimum(tested, successes + 1)).T, (positions < successes).T


@dataclass(frozen=True)
class Observations:
    """The R rows of num_steps steps, as in BatchView and Outcome; int [R] where not said otherwise.

    match_lengths: int [D, R]. confidence: float [R, K] or None. parents, node_tests: int [R, K], as in Outcome, of
    chains too, or None where all are. free_tests: int [D, 3, R], see records.FreeTests; D is 0 where there are none.
    """

    num_steps: int
    request_ids: np.ndarray
    class_ids: np.ndarray
    drafter: np.ndarray
    drafted: np.ndarray
    verified: np.ndarray
    tested: np.ndarray
    accepted: np.ndarray
    match_lengths: np.ndarray
    confidence: np.ndarray | None
    parents: np.ndarray | None
    node_tests: np.ndarray | None
    free_tests: np.ndarray

    @staticmethod
    def of(steps: Sequence[Outcome]) -> "Observations":
        """Of at least one step."""
        return Observations(
            num_steps=len(steps),
            **dict(zip(_COLUMNS, _joined(map(_columns, steps)), strict=True)),
            match_lengths=_joined([each.match_lengths for each in step.view.drafters] for step in steps),
            confidence=_confidence(steps),
            parents=_trees(steps, "parents", _chain),
            node_tests=_trees(steps, "node_tests", _chain_tests),
            free_tests=_free_tests(steps),
        )

    def tests(self, num_positions: int) -> tuple[np.ndarray, np.ndarray]:
        """How often each position of each drafter's draft was tested in each row, and how often accepted: two float
        [num_positions, D, R], of the drafts that were verified."""
        is_own = self.drafter == np.arange(len(self.match_lengths))[:, None]
        tested, accepted = observed_positions(num_positions, self.tested, self.accepted)
        return (tested.T[:, None] & is_own).astype(float), (accepted.T[:, None] & is_own).astype(float)

    def add_free_tests(self, tested: np.ndarray, accepted: np.ndarray) -> None:
        """Add them to what tests() returned."""
        if not len(self.free_tests) or not self.free_tests[:, 1].any():
            return
        position, num_tested, matched = self.free_tests.transpose(1, 0, 2)
        part = np.minimum(1.0, MAX_FREE_TESTS / np.maximum(num_tested, 1))
        is_there = np.arange(len(tested))[:, None, None] == position
        tested[:, : len(position)] += is_there * (num_tested * part)
        accepted[:, : len(position)] += is_there * (matched * part)

    def outcomes(self, num_nodes: int) -> np.ndarray:
        """Of each node whether it was accepted (1), rejected (0) or not compared (-1): int [num_nodes, R]."""
        if self.node_tests is not None:
            return self.node_tests.T
        return _as_outcomes(*observed_positions(num_nodes, self.tested, self.accepted)).T

    def first_cut(self, num_positions: int) -> np.ndarray:
        """Where everything verified was accepted and the next draft token was cut, so its outcome is unknown: bool
        [num_positions, R]."""
        is_cut = (self.tested >= self.verified) & (self.accepted >= self.verified) & (self.drafted > self.verified)
        if self.parents is not None:  # which of a tree's nodes would have been next is known after a chain alone
            nodes = np.arange(self.parents.shape[1])
            is_cut &= ((self.parents == nodes - 1) | (nodes > self.verified[:, None])).all(axis=1)
        for number, (position, tested, _) in enumerate(self.free_tests):
            is_cut &= ~((tested > 0) & (position == self.verified) & (self.drafter == number))
        return is_cut & (np.arange(num_positions)[:, None] == self.verified)


def top_child_tests(parents: np.ndarray, node_tests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether the children of a tree's path were compared at each depth, and whether the first of them was accepted:
    two float [K, R]. parents, node_tests: int [R, K], as in Outcome."""
    tested, accepted = np.zeros((2, parents.shape[1], len(parents)))
    rows, nodes = np.nonzero(node_tests >= 0)
    depths = depths_of(parents)[rows, nodes] - 1
    is_top = ~np.tril(parents[:, :, None] == parents[:, None, :], -1).any(axis=2)[rows, nodes]
    tested[depths, rows] = 1.0
    accepted[depths[is_top], rows[is_top]] = node_tests[rows, nodes][is_top]
    return tested, accepted


_COLUMNS = ("request_ids", "class_ids", "drafter", "drafted", "verified", "tested", "accepted")


def _columns(step: Outcome) -> list[np.ndarray]:
    counts = step.drafted, step.verified, step.tested, step.accepted
    return [step.view.request_ids, step.view.class_ids, step.plan.drafter, *counts]


def _joined(columns: Iterable[list[np.ndarray]]) -> np.ndarray:
    """int [columns, R], of the columns of each step."""
    of_steps = list(zip(*columns, strict=True))
    return np.concatenate([of_step for column in of_steps for of_step in column]).reshape(len(of_steps), -1)


def _confidence(steps: Sequence[Outcome]) -> np.ndarray | None:
    width = next((step.confidence.shape[1] for step in steps if step.confidence is not None), None)
    if width is None:
        return None
    unknown = (np.full((step.view.num_rows, width), np.nan) for step in steps)
    return np.concatenate([u if s.confidence is None else s.confidence for s, u in zip(steps, unknown, strict=True)])


def _as_outcomes(tested: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    return np.where(tested, accepted.astype(np.int64), -1)


def _chain(step: Outcome, num_nodes: int) -> np.ndarray:
    return np.broadcast_to(np.arange(-1, num_nodes - 1), (step.view.num_rows, num_nodes))


def _chain_tests(step: Outcome, num_nodes: int) -> np.ndarray:
    return _as_outcomes(*observed_positions(num_nodes, step.tested, step.accepted))


def _trees(steps: Sequence[Outcome], name: str, of_chains: Callable[[Outcome, int], np.ndarray]) -> np.ndarray | None:
    """A column of records that only steps with trees have: int [R, K]; None where no step has one."""
    columns = [getattr(step, name) for step in steps]
    width = next((column.shape[1] for column in columns if column is not None), None)
    if width is None:
        return None
    pairs = zip(columns, steps, strict=True)
    return np.concatenate([of_chains(step, width) if column is None else column for column, step in pairs])


def _free_tests(steps: Sequence[Outcome]) -> np.ndarray:
    num_drafters, num_rows = max(len(step.free_tests) for step in steps), sum(step.view.num_rows for step in steps)
    of_steps = []
    for step in steps:
        nothing = np.zeros(step.view.num_rows, dtype=np.int64)
        free = step.free_tests or (FreeTests(nothing, nothing, nothing),) * num_drafters
        of_steps.append([column for each in free for column in (each.position, each.tested, each.matched)])
    columns = _joined(of_steps) if num_drafters else np.zeros((0, num_rows), dtype=np.int64)
    return columns.reshape(num_drafters, 3, num_rows)
