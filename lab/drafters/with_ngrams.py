"""One draft tree of what a head and the n-gram tree propose after the same text.

python benchmarks/drafters.py tokens --trees --drafters ngram-tree+head
"""

from collections.abc import Sequence

import numpy as np

from lab.drafters.ngram_tree import NgramTree
from smartspec.core.batch import NO_DRAFT, Batch, Draft
from smartspec.core.drafter import TreeDrafter


class WithNgrams:
    """A drafter into whose trees those of the n-gram drafter go, which cost nothing more: it is a
    drafter of the same engine and has made its own when this one is called. Chains stay as they
    are. Implements core.drafter.TreeDrafter."""

    def __init__(self, drafter: TreeDrafter, ngrams: NgramTree):
        self.spec = drafter.spec
        self.begin_step, self.view = drafter.begin_step, drafter.view
        self.draft, self.observe = drafter.draft, drafter.observe
        self._drafter, self._ngrams = drafter, ngrams

    def draft_trees(
        self, batch: Batch, lengths, depths, width, stop=None, chances=None
    ) -> Sequence[Draft]:
        """The best lengths[i] nodes (int [R]) of both; of the drafter alone where a plan says what
        its children are taken for."""
        made = self._drafter.draft_trees(batch, lengths, depths, width, stop, chances)
        if chances is not None:
            return made
        return list(map(merged, made, self._ngrams.draft(batch, lengths, stop), lengths.tolist()))


def merged(one: Draft, other: Draft, num_nodes: int) -> Draft:
    """The likeliest num_nodes nodes of two trees with confidence. A node of both is as likely as
    the surer one says."""
    chances: dict[tuple[int, ...], float] = {}
    for draft in (one, other):
        if draft.confidence is not None:
            for path, chance in zip(draft.paths[1:], draft.confidence.tolist(), strict=True):
                chances[path] = max(chance, chances.get(path, 0.0))
    worth = {(): 1.0}
    for path in sorted(chances, key=len):
        worth[path] = worth[path[:-1]] * chances[path]
    kept = sorted(chances, key=lambda path: (-worth[path], len(path)))[:num_nodes]
    if not kept:
        return NO_DRAFT
    place = {path: number for number, path in enumerate(kept)} | {(): -1}
    return Draft(
        np.array([path[-1] for path in kept], dtype=np.int32),
        np.array([place[path[:-1]] for path in kept], dtype=np.int32),
        confidence=np.array([chances[path] for path in kept]),
    )
