import numpy as np
import pytest
from static_tree import best_tree

RANKS = (0.6, 0.2, 0.08)


def sequoia_tokens(ranks, num_nodes: int, depth: int) -> float:
    """T of the dynamic program, written down as in the paper: best over the number of branches of
    the root."""

    def tree(nodes: int, levels: int) -> float:
        if nodes < 1 or levels < 1:
            return -np.inf
        if (nodes, levels) not in memo:
            memo[nodes, levels] = max(branches(nodes, levels, b) for b in range(len(ranks) + 1))
        return memo[nodes, levels]

    def branches(nodes: int, levels: int, b: int) -> float:
        if b == 0:
            return 1.0 if nodes == 1 else -np.inf
        key = nodes, levels, b
        if key not in memo:
            memo[key] = max(
                (
                    branches(y, levels, b - 1) + ranks[b - 1] * tree(nodes - y, levels - 1)
                    for y in range(1, nodes)
                ),
                default=-np.inf,
            )
        return memo[key]

    memo: dict = {}
    return tree(num_nodes, depth)


@pytest.mark.parametrize(
    ("nodes", "depth", "tokens"), [(4, 4, 2.176), (8, 5, 2.746), (16, 5, 3.224), (32, 7, 3.763)]
)
def test_sequoias_check_values(nodes, depth, tokens):
    """Published with the root as a node and as the first depth."""
    assert sequoia_tokens(RANKS, nodes, depth) == pytest.approx(tokens, abs=6e-4)
    tree = best_tree(np.tile(RANKS, (depth - 1, 1)), nodes - 1)
    assert tree.tokens_per_step == pytest.approx(tokens, abs=6e-4)
