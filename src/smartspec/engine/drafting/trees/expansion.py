"""Trees of a drafter that runs passes: best-first expansion by path probability, one pass per
depth.

EAGLE-2 (arXiv 2406.16858), section 4: of the nodes that a pass has made, the `width` likeliest are
fed to the next one; each of them proposes its likeliest children; in the end the likeliest of all
nodes ever made are the draft. Path probabilities fall along a path, so that these are a connected
tree. Which is a point-mass draft: children are the most likely tokens and not drawn, and it may be
cut and ordered by its probabilities.

A node that is not among the `num_nodes` likeliest made so far cannot be in the draft, nor can its
children, so it is not fed. A width of 1 makes a chain.

    growing = TreeExpansion(width=4, num_nodes=16)
    growing.add([-1], *best_children(logits of the text's last token, 4))   # of the pass over what the KV lacks
    while fed := growing.frontier():
        token_ids, mask = growing.token_ids(fed), growing.feed(fed, place)     # place: after what the KV holds
        logits = a pass over the segment (slot, place, token_ids, tree=mask)
        growing.add(fed, *best_children(logits, 4))
    draft = growing.draft()

The drafter's KV then holds fed nodes in the order of feeding after the text, not a path: what is
accepted is fed again with the next draft's first pass.
"""  # noqa: E501

from collections.abc import Iterable

import numpy as np
import torch

from smartspec.control.records import MAX_TREE_NODES
from smartspec.core.batch import NO_DRAFT, Draft, chain_parents
from smartspec.engine.attention.tree_mask import MAX_TREE_TOKENS, TreeMask, tree_mask


def best_children(logits: torch.Tensor, width: int) -> tuple[list[list[int]], list[list[float]]]:
    """The tokens that are likeliest after each row of logits [n, V], the first best, and their
    probabilities."""
    top = logits.float().topk(min(width, logits.shape[-1]), dim=-1)
    chances = torch.exp(top.values - torch.logsumexp(logits.float(), dim=-1, keepdim=True))
    return top.indices.tolist(), chances.tolist()


class TreeExpansion:
    """The tree of one request in the making.

    width: children of a node that are kept, and most nodes fed to a pass. num_nodes: of the draft.
    max_fed: most nodes that are fed in all. Raises ValueError for a tree of more nodes than a mask
    holds.
    """

    def __init__(self, width: int, num_nodes: int, max_fed: int = MAX_TREE_TOKENS):
        if width > 1 and num_nodes > MAX_TREE_NODES:
            raise ValueError(
                f"a draft tree of {num_nodes} nodes: the limit is {MAX_TREE_NODES}, use fewer nodes"
            )
        self.width, self.num_nodes = width, num_nodes
        # Without a mask, as chains are fed, there is no limit but theirs.
        self._max_fed = max_fed if width == 1 else min(max_fed, MAX_TREE_TOKENS)
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._chances: list[float] = []  # given that the parent is accepted
        self._paths: list[float] = []  # that a node is reached and accepted
        self._unfed: list[int] = []  # of the newest level
        self._fed: list[int] = []
        self._ancestors = np.empty(0, dtype=np.uint64)
        self._beam = 1.0  # that one of the newest level's likeliest nodes is reached and accepted

    def add(
        self, nodes: list[int], token_ids: list[list[int]], chances: list[list[float]]
    ) -> float:
        """Children of each of these nodes (-1: the text), the likeliest first, and the probability
        of each after it; of more than width the rest is left out. Returns the probability that one
        of the likeliest width of all is right, given that one of those of the level before is."""
        first = len(self._tokens)
        for node, its_tokens, its_chances in zip(nodes, token_ids, chances, strict=True):
            path = self._paths[node] if node >= 0 else 1.0
            kept = its_chances[: self.width]
            self._tokens += its_tokens[: self.width]
            self._parents += [node] * len(kept)
            self._chances += kept
            self._paths += [path * chance for chance in kept]
        self._unfed = self._likeliest(range(first, len(self._tokens)))[: self.width]
        before, self._beam = self._beam, sum(self._paths[node] for node in self._unfed)
        return self._beam / before if before else 0.0

    def frontier(self) -> list[int]:
        """The nodes of the newest level that are worth feeding, the likeliest first; none where the
        draft cannot become another."""
        unfed = self._unfed[: self._max_fed - len(self._fed)]
        if len(self._tokens) < self.num_nodes:
            return unfed
        least = self._paths[self._likeliest(range(len(self._tokens)))[self.num_nodes - 1]]
        return [node for node in unfed if self._paths[node] > least]

    def token_ids(self, nodes: list[int]) -> np.ndarray:
        """int32 [len(nodes)]."""
        return np.array([self._tokens[node] for node in nodes], dtype=np.int32)

    def parents(self, nodes: list[int]) -> list[int]:
        """The node that each of these follows, -1 for the text."""
        return [self._parents[node] for node in nodes]

    def feed(self, nodes: list[int], place: int) -> TreeMask | None:
        """The mask of these nodes, fed in places place.. of the KV after those fed before; None
        where they see all. Raises ValueError where more are fed than a mask holds."""
        if self.width == 1:
            self._fed += nodes
            return None
        numbers = {node: number for number, node in enumerate(self._fed)} | {-1: -1}
        parents = np.array([numbers[self._parents[node]] for node in nodes])
        mask = tree_mask(parents, place - len(self._fed), len(self._fed), self._ancestors)
        self._fed += nodes
        self._ancestors = np.concatenate([self._ancestors, mask.ancestors])
        return mask

    def draft(self) -> Draft:
        """The likeliest nodes in node order, with their chances as confidence."""
        order = self._likeliest(range(len(self._tokens)))[: self.num_nodes]
        if not order:
            return NO_DRAFT
        place = {node: number for number, node in enumerate(order)} | {-1: -1}
        parents = np.array([place[self._parents[node]] for node in order], dtype=np.int32)
        return Draft(
            self.token_ids(order),
            chain_parents(len(order)) if self.width == 1 else parents,
            confidence=np.array([self._chances[node] for node in order]),
        )

    def _likeliest(self, nodes: Iterable[int]) -> list[int]:
        return sorted(nodes, key=lambda node: -self._paths[node])
