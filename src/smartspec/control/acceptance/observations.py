"""Observations of acceptance in finished steps: counts by row, several steps as one.

A few steps are learned from together. After a target pass, the code of learning is in no cache. So
the time of a run depends more on that than on the number of its rows. A request has one row for
every step it was in.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from smartspec.control.records import FreeTests, Outcome, depths_of

# A draft prefill may test hundreds of tokens at once; they say less about the next than fresh ones
# do.
MAX_FREE_TESTS = 16


def observed_positions(
    num_positions: int, tested: np.ndarray, accepted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the verified drafts that were observed, and those that were accepted:
    two bool [R, num_positions].

    tested, accepted: int [R], see records.Outcome.
    """
    positions = np.arange(num_positions)[:, None]
    successes = np.minimum(accepted, tested)
    return (positions < np.minimum(tested, successes + 1)).T, (positions < successes).T


@dataclass(frozen=True)
class Observations:
    """The R rows of num_steps steps. Fields without a comment are int [R], as in BatchView, Plan
    and Outcome."""

    num_steps: int
    request_ids: np.ndarray
    class_ids: np.ndarray
    drafter: np.ndarray
    drafted: np.ndarray
    verified: np.ndarray
    tested: np.ndarray
    accepted: np.ndarray
    match_lengths: np.ndarray  # int [D, R]
    confidence: np.ndarray | None  # float [R, K]
    # int [R, K], as in Outcome, with values for chains too; None where all are chains
    parents: np.ndarray | None
    node_tests: np.ndarray | None  # int [R, K], the same
    free_tests: np.ndarray  # int [D, 3, R], see records.FreeTests; D is 0 where there are none

    @staticmethod
    def of(steps: Sequence[Outcome]) -> "Observations":
        """Return the observations of at least one step."""
        return Observations(
            num_steps=len(steps),
            **dict(zip(_COLUMNS, _join(map(_columns, steps)), strict=True)),
            match_lengths=_join(
                [each.match_lengths for each in step.view.drafters] for step in steps
            ),
            confidence=_of_nodes(steps, "confidence", _unknown),
            parents=_of_nodes(steps, "parents", _chain),
            node_tests=_of_nodes(steps, "node_tests", _chain_tests),
            free_tests=_free_tests(steps),
        )

    def tests(self, num_positions: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of tests, and that of acceptances, of each position of each drafter's
        verified draft in each row: two float [num_positions, D, R]."""
        is_own = self.drafter == np.arange(len(self.match_lengths))[:, None]
        tested, accepted = observed_positions(num_positions, self.tested, self.accepted)
        return (tested.T[:, None] & is_own).astype(float), (accepted.T[:, None] & is_own).astype(
            float
        )

    def add_free_tests(self, tested: np.ndarray, accepted: np.ndarray) -> None:
        """Add the free tests to the result of tests()."""
        if not len(self.free_tests) or not self.free_tests[:, 1].any():
            return
        position, num_tested, matched = self.free_tests.transpose(1, 0, 2)
        part = np.minimum(1.0, MAX_FREE_TESTS / np.maximum(num_tested, 1))
        is_there = np.arange(len(tested))[:, None, None] == position
        tested[:, : len(position)] += is_there * (num_tested * part)
        accepted[:, : len(position)] += is_there * (matched * part)

    def outcomes(self, num_nodes: int) -> np.ndarray:
        """Return 1 for an accepted node, 0 for a rejected one, -1 for one that was not compared:
        int [num_nodes, R]."""
        if self.node_tests is not None:
            return self.node_tests.T
        return _to_outcomes(*observed_positions(num_nodes, self.tested, self.accepted)).T

    def first_cut(self, num_positions: int) -> np.ndarray:
        """Return bool [num_positions, R], True at the draft token after the verified ones, where
        these were all accepted and this one was cut: its outcome is unknown."""
        is_cut = (
            (self.tested >= self.verified)
            & (self.accepted >= self.verified)
            & (self.drafted > self.verified)
        )
        if self.parents is not None:  # the next node of a tree is known only after a chain
            nodes = np.arange(self.parents.shape[1])
            is_cut &= ((self.parents == nodes - 1) | (nodes > self.verified[:, None])).all(axis=1)
        for number, (position, tested, _) in enumerate(self.free_tests):
            is_cut &= ~((tested > 0) & (position == self.verified) & (self.drafter == number))
        return is_cut & (np.arange(num_positions)[:, None] == self.verified)


def top_child_tests(parents: np.ndarray, node_tests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 1 at each depth where the children of a tree's path were compared, and 1 where the
    first of them was accepted, 0 elsewhere: two float [K, R]. parents, node_tests: int [R, K], as
    in Outcome."""
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


def _join(columns: Iterable[list[np.ndarray]]) -> np.ndarray:
    """Return the columns of each step as one array: int [columns, R]."""
    of_steps = list(zip(*columns, strict=True))
    return np.concatenate([of_step for column in of_steps for of_step in column]).reshape(
        len(of_steps), -1
    )


def _unknown(step: Outcome, num_nodes: int) -> np.ndarray:
    return np.full((step.view.num_rows, num_nodes), np.nan)


def _to_outcomes(tested: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    return np.where(tested, accepted.astype(np.int64), -1)


def _chain(step: Outcome, num_nodes: int) -> np.ndarray:
    return np.broadcast_to(np.arange(-1, num_nodes - 1), (step.view.num_rows, num_nodes))


def _chain_tests(step: Outcome, num_nodes: int) -> np.ndarray:
    return _to_outcomes(*observed_positions(num_nodes, step.tested, step.accepted))


def _of_nodes(
    steps: Sequence[Outcome], name: str, default: Callable[[Outcome, int], np.ndarray]
) -> np.ndarray | None:
    """Return a field of outcomes that only some steps have: [R, K]; None where no step has it."""
    columns = [getattr(step, name) for step in steps]
    width = next((column.shape[1] for column in columns if column is not None), None)
    if width is None:
        return None
    pairs = zip(columns, steps, strict=True)
    return np.concatenate(
        [default(step, width) if column is None else column for column, step in pairs]
    )


def _free_tests(steps: Sequence[Outcome]) -> np.ndarray:
    num_drafters = max(len(step.free_tests) for step in steps)
    of_steps = []
    for step in steps:
        nothing = np.zeros(step.view.num_rows, dtype=np.int64)
        free = step.free_tests or (FreeTests(nothing, nothing, nothing),) * num_drafters
        of_steps.append([[each.position, each.tested, each.matched] for each in free])
    return np.concatenate([np.array(each, dtype=np.int64) for each in of_steps], axis=-1)
