"""The chance of a node's second, third, ... child: P(the child of this rank is right | the top-1
child is wrong).

It is learned online. A drafter that makes trees proposes the likeliest children of a node first.
These chances, and those of the top-1 child by depth (table), predict what a tree would bring before
it exists (see expected_tree). Nothing is learned from nodes that are cut after drafting: most of
them were unlikely.
"""

import numpy as np

from smartspec.control.acceptance.settings import (
    RANK_FALL,
    RANK_MEMORY,
    RANK_STRENGTH,
    SECOND_CHILD,
)

MAX_RANK = 8  # child ranks that are told apart


class ChildRankAcceptance:
    """The chances of child ranks of one drafter. chances: float [MAX_RANK], of ranks 1, 2, ...,
    never increasing. memory: observations of a rank that count."""

    def __init__(self, memory: float = RANK_MEMORY):
        prior = SECOND_CHILD * RANK_FALL ** np.arange(MAX_RANK)
        self._hits, self._tries = RANK_STRENGTH * prior, np.full(MAX_RANK, RANK_STRENGTH)
        self._fade = 1.0 - 1.0 / memory
        self.chances = prior

    def learn(self, parents: np.ndarray, node_tests: np.ndarray) -> None:
        """Learn from verified trees; int [R, K] both, see records.Outcome."""
        has_same_parent = parents[:, :, None] == parents[:, None, :]
        ranks = np.tril(has_same_parent, -1).sum(axis=2)
        top = has_same_parent.argmax(axis=2)
        is_known = (
            (ranks > 0) & (node_tests >= 0) & (np.take_along_axis(node_tests, top, axis=1) == 0)
        )
        kept = is_known & (ranks <= MAX_RANK)
        if not kept.any():
            return
        tries = np.bincount(ranks[kept] - 1, minlength=MAX_RANK)
        hits = np.bincount(ranks[kept] - 1, node_tests[kept], MAX_RANK)
        self._hits = self._hits * self._fade**tries + hits
        self._tries = self._tries * self._fade**tries + tries
        self.chances = np.minimum.accumulate(self._hits / self._tries)
