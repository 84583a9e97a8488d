"""The expected worth of trees before they exist: the likeliest nodes of each row, by acceptance of
depth and rank.

The chance of a node is taken as the product of its edges. The top-1 child of a node at depth d is
right with the chance of a chain's token there. A child of a later rank is right with the chance of
its rank where the top-1 child is wrong. The best tree of n nodes then has the n largest products;
the dynamic program of Sequoia (arXiv 2402.12374) finds the same tree. Nodes are popped one by one,
for all rows at once.
"""

import numpy as np


def expected_trees(survival: np.ndarray, rank_chances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the survival of the likeliest K nodes of each row, likeliest first, and their depths,
    1 for those that follow the text: float and int [R, K].

    survival: float [R, K], of chains. rank_chances: float [W], chance of the second, third, ...
    child of a node where the first is wrong.
    """
    num_rows, num_nodes = survival.shape
    edges = _edges(survival, rank_chances)
    rows = np.arange(num_rows)
    # The nodes that may be popped next: for each popped node, its own top-1 child and its parent's
    # child of next rank.
    values = np.zeros((num_rows, num_nodes + 1))
    of_parent = np.ones((num_rows, num_nodes + 1))
    depths, ranks = np.ones((2, num_rows, num_nodes + 1), dtype=np.int64)
    ranks[:] = 0
    values[:, 0] = edges[0, 0]
    found, at_depth = (
        np.zeros((num_rows, num_nodes)),
        np.ones((num_rows, num_nodes), dtype=np.int64),
    )
    for number in range(num_nodes):
        best = values.argmax(axis=1)
        value, depth = values[rows, best], depths[rows, best]
        found[:, number], at_depth[:, number] = value, depth
        ranks[rows, best] += 1
        values[rows, best] = of_parent[rows, best] * edges[depth - 1, ranks[rows, best], rows]
        of_parent[:, number + 1], depths[:, number + 1] = value, depth + 1
        values[:, number + 1] = value * edges[depth, 0, rows]
    return found, at_depth


def child_chances(top: np.ndarray, rank_chances: np.ndarray) -> np.ndarray:
    """Return the chance of each child, given that its parent is right: float [..., width]. top:
    float [...], the chance of the first. rank_chances: float [width - 1], the chances of the others
    where the first is wrong."""
    return np.concatenate([top[..., None], (1.0 - top[..., None]) * rank_chances], axis=-1)


def _edges(survival: np.ndarray, rank_chances: np.ndarray) -> np.ndarray:
    """Return the chance of a child by depth and rank, given that its parent is accepted: float [K +
    1, ranks + 1, R]. It is 0 at the last depth and at the last rank."""
    num_rows, num_nodes = survival.shape
    before = np.concatenate([np.ones((num_rows, 1)), survival[:, :-1]], axis=1)
    top = np.divide(survival, before, out=np.zeros_like(survival), where=before > 0).T
    edges = np.zeros((num_nodes + 1, num_nodes + 1, num_rows))
    later = rank_chances[: num_nodes - 1]
    edges[:-1, 0] = top
    edges[:-1, 1 : 1 + len(later)] = (1.0 - top[:, None]) * later[:, None]
    return np.minimum.accumulate(edges, axis=1)
