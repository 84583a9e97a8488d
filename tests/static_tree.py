"""The best static draft tree for a head whose acceptance by depth and rank is known.

If the chance of a node is the product of its edges, the best tree of n nodes within a depth are the
n largest products, popped from a heap: the same expected tokens as the dynamic program of Sequoia
(arXiv 2402.12374, section 4.1, where acceptance is the same at every depth; its tables count the
root as a node and as the first depth).
"""

import heapq
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StaticTree:
    """Nodes, likeliest first. survival: float [n], chance that each is accepted with its ancestors.
    depths: int [n], 1 for those that follow the text. parents: int [n], -1 for the text."""

    survival: np.ndarray
    depths: np.ndarray
    parents: np.ndarray

    @property
    def tokens_per_step(self) -> float:
        """Expected emitted tokens, that after the accepted path included."""
        return 1.0 + float(self.survival.sum())


def best_tree(acceptance: np.ndarray, num_nodes: int) -> StaticTree:
    """acceptance: float [depth, ranks], the chance that a node's child of each rank is the right
    one, given that the node is accepted; its rows say how deep a tree may be."""
    max_depth, num_ranks = acceptance.shape
    survival: list[float] = []
    depths: list[int] = []
    parents: list[int] = []
    frontier = [(-float(p), rank, 1, -1) for rank, p in enumerate(acceptance[0])]
    heapq.heapify(frontier)
    while frontier and len(survival) < num_nodes:
        negative, _, depth, parent = heapq.heappop(frontier)
        survival.append(-negative)
        depths.append(depth)
        parents.append(parent)
        if depth < max_depth:
            for rank in range(num_ranks):
                child = (
                    negative * float(acceptance[depth, rank]),
                    rank,
                    depth + 1,
                    len(survival) - 1,
                )
                heapq.heappush(frontier, child)
    return StaticTree(
        np.array(survival), np.array(depths, dtype=np.int64), np.array(parents, dtype=np.int64)
    )
