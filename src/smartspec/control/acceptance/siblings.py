"""What the younger children of a node are worth: P(child of a rank is right | the eldest is wrong), learned online.

A drafter that makes trees proposes the likeliest children of a node first. With that of the eldest by depth (cells),
these chances say what a tree would bring before there is one (see planner.expected_tree). Of what is cut behind
drafting nothing is learned: mostly children that were not likely.
"""

import numpy as np

from smartspec.control.acceptance.settings import AcceptanceSettings

MAX_RANK = 8  # younger siblings that are told apart


class SiblingAcceptance:
    """Of one drafter. chances: float [MAX_RANK], of ranks 1, 2, ..., never increasing."""

    def __init__(self, settings: AcceptanceSettings):
        prior = settings.second_child * settings.sibling_fall ** np.arange(MAX_RANK)
        self._hits, self._tries = settings.sibling_strength * prior, np.full(MAX_RANK, settings.sibling_strength)
        self._fade = 1.0 - 1.0 / settings.sibling_memory
        self.chances = prior

    def learn(self, parents: np.ndarray, node_tests: np.ndarray) -> None:
        """From verified trees; int [R, K] both, see records.Outcome."""
        is_sibling = parents[:, :, None] == parents[:, None, :]
        ranks = np.tril(is_sibling, -1).sum(axis=2)
        eldest = is_sibling.argmax(axis=2)
        is_known = (ranks > 0) & (node_tests >= 0) & (np.take_along_axis(node_tests, eldest, axis=1) == 0)
        kept = is_known & (ranks <= MAX_RANK)
        if not kept.any():
            return
        tries = np.bincount(ranks[kept] - 1, minlength=MAX_RANK)
        hits = np.bincount(ranks[kept] - 1, node_tests[kept], MAX_RANK)
        self._hits = self._hits * self._fade**tries + hits
        self._tries = self._tries * self._fade**tries + tries
        self.chances = np.minimum.accumulate(self._hits / self._tries)
