"""Pieces of the simulated executor: runs, stop rules."""

import numpy as np

from smartspec.sim.executor import masked, stop_early
from smartspec.sim.world.acceptance import count_leading


def test_count_leading():
    rows = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 1]], dtype=bool)
    assert count_leading(rows).tolist() == [3, 1, 0]
    assert count_leading(np.zeros((0, 3), dtype=bool)).tolist() == []


def test_masked_keeps_the_beginning_of_each_row():
    assert np.isnan(masked(np.ones((2, 3)), np.array([1, 3]))).tolist() == [
        [False, True, True],
        [False] * 3,
    ]


def test_a_stop_rule_ends_drafts_after_the_token_it_saw():
    calls = []

    def stop(depth, rows, confidence, entropy):
        calls.append((depth, rows.tolist()))
        assert (entropy == 1 - confidence).all()
        return confidence < 0.5

    confidence = np.array(
        [[0.9, 0.4, 0.9, 0.9], [0.4, 0.9, 0.9, 0.9], [0.9, 0.9, 0.9, 0.9], [0.1, 0.1, 0.1, 0.1]]
    )
    drafted = stop_early(stop, np.array([4, 4, 3, 0]), confidence, 1 - confidence)
    assert drafted.tolist() == [2, 1, 3, 0]
    assert calls == [(0, [0, 1, 2]), (1, [0, 2]), (2, [2])]
