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


def test_the_best_size_of_sequoias_demo_configuration():
    """Draft pass 0.3; target passes of 1 to 32 tokens; the paper's program charges as many draft
    passes as depths."""
    target = {1: 10.0, 2: 10.0, 4: 10.0, 8: 12.0, 16: 14.0, 32: 18.0}
    seconds_per_token = {
        (nodes, depth): (0.3 * depth + seconds)
        / best_tree(np.tile(RANKS, (depth - 1, 1)), nodes - 1).tokens_per_step
        for nodes, seconds in target.items()
        for depth in range(2, 11)
    }
    best = min(seconds_per_token, key=seconds_per_token.get)
    assert best == (16, 5) and seconds_per_token[best] == pytest.approx(4.81, abs=0.01)


def test_a_single_rank_makes_a_chain():
    tree = best_tree(np.array([[0.8], [0.5], [0.5]]), 10)
    assert tree.survival.tolist() == pytest.approx([0.8, 0.4, 0.2]) and tree.parents.tolist() == [
        -1,
        0,
        1,
    ]
    assert tree.fed_by_pass.tolist() == [1, 1, 1]


def test_passes_are_fed_the_nodes_that_have_children():
    tree = best_tree(np.array([[0.5, 0.4], [0.5, 0.4]]), 6)
    assert tree.depths.tolist() == [1, 1, 2, 2, 2, 2] and tree.fed_by_pass.tolist() == [1, 2]
    assert best_tree(np.array([[0.5, 0.4]]), 2).fed_by_pass.tolist() == [1]
