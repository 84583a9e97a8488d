"""How a drafter that runs passes makes a tree: best-first expansion by path probability, one pass per depth.

EAGLE-2 (arXiv 2406.16858), section 4: of the nodes that a pass has made, the `width` likeliest are fed to the next one;
each of them proposes its likeliest children; in the end the likeliest of all nodes ever made are the draft. Path
probabilities fall along a path, so that these are a connected tree. Which is a point-mass draft: children are the most
likely tokens and not drawn, and it may be cut and ordered by its probabilities.

    growing = TreeExpansion(width=4)
    growing.add([-1], logits of the text's last token)             # from the pass over what the drafter's KV lacks
    while another pass is wanted:
        fed = growing.frontier()                                   # nodes to feed
        token_ids, mask = growing.token_ids(fed), growing.feed(fed, base)
        growing.add(fed, logits behind them)                       # of the segment (slot, place, token_ids, tree=mask)
    draft = growing.draft(num_nodes)

The drafter's KV then holds fed nodes in the order of feeding behind base, not a path: its text ends at base, and what
is accepted is fed again with the next draft's first pass.
"""

import numpy as np
import torch

from smartspec.core.batch import NO_DRAFT, Draft
from smartspec.engine.attention.tree_mask import TreeMask, tree_mask


class TreeExpansion:
    """The tree of one request in the making. width: children of a node that are kept, and nodes fed to a pass."""

    def __init__(self, width: int):
        self.width = width
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._chances: list[float] = []  # given that the parent is accepted
        self._paths: list[float] = []  # that a node is reached and accepted
        self._unfed: list[int] = []  # of the newest level
        self._fed: list[int] = []
        self._ancestors = np.empty(0, dtype=np.uint64)

    def add(self, nodes: list[int], logits: torch.Tensor) -> None:
        """The likeliest children of these nodes (-1: the text). logits: [len(nodes), V], behind each of them."""
        top = torch.softmax(logits.float(), dim=-1).topk(min(self.width, logits.shape[-1]), dim=-1)
        first = len(self._tokens)
        for node, token_ids, chances in zip(nodes, top.indices.tolist(), top.values.tolist(), strict=True):
            path = self._paths[node] if node >= 0 else 1.0
            self._tokens += token_ids
            self._parents += [node] * len(token_ids)
            self._chances += chances
            self._paths += [path * chance for chance in chances]
        self._unfed = list(range(first, len(self._tokens)))

    def frontier(self) -> list[int]:
        """The nodes of the newest level that are worth feeding, the likeliest first."""
        return sorted(self._unfed, key=lambda node: -self._paths[node])[: self.width]

    def token_ids(self, nodes: list[int]) -> np.ndarray:
        """int32 [len(nodes)]."""
        return np.array([self._tokens[node] for node in nodes], dtype=np.int32)

    def feed(self, nodes: list[int], base: int) -> TreeMask:
        """What these nodes see when they are fed behind those fed before; the text ends at place base of the KV. Raises
        ValueError where more are fed than a mask holds."""
        place = {node: number for number, node in enumerate(self._fed)} | {-1: -1}
        parents = np.array([place[self._parents[node]] for node in nodes])
        mask = tree_mask(parents, base, len(self._fed), self._ancestors)
        self._fed += nodes
        self._ancestors = np.concatenate([self._ancestors, mask.ancestors])
        return mask

    def draft(self, num_nodes: int) -> Draft:
        """The likeliest num_nodes nodes in node order, with their chances as confidence."""
        order = sorted(range(len(self._tokens)), key=lambda node: -self._paths[node])[:num_nodes]
        if not order:
            return NO_DRAFT
        place = {node: number for number, node in enumerate(order)} | {-1: -1}
        return Draft(
            self.token_ids(order),
            np.array([place[self._parents[node]] for node in order], dtype=np.int32),
            confidence=np.array([self._chances[node] for node in order]),
        )
