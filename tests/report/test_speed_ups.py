"""Ratios within a repetition, and what is inside the noise."""

import numpy as np
import pytest
from report_cases import CHAT, CODE, matrix, measured

from smartspec.report.figures import best_fixed, bootstrap_interval, cell_figures, speed_ups

FAST, SLOW = [1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.8, 2.0]


def runs_of(*runs):
    return {run.key: run for run in runs}


def test_a_clear_difference_is_faster_or_slower_and_the_worst_comes_first():
    runs = [
        measured("goodput", cell, r, seconds)
        for r in range(3)
        for cell, seconds in ((CHAT, FAST), (CODE, SLOW))
    ]
    runs += [
        measured("off", cell, r, seconds)
        for r in range(3)
        for cell, seconds in ((CHAT, SLOW), (CODE, FAST))
    ]
    found = speed_ups(matrix(), runs_of(*runs), "goodput")
    assert [(each.cell, each.other, each.verdict) for each in found] == [
        (CODE, "off", "slower"),
        (CHAT, "off", "faster"),
    ]
    assert [each.ratio for each in found] == pytest.approx([0.5, 2.0])
    assert found[0].repetitions == 3 and found[0].num_pairs == 12 and found[0].equal_answers == 1.0


def test_machine_noise_between_repetitions_is_noise():
    """Each repetition alone looks like a clear difference, once for one and once for the other."""
    factors = [0.7, 1.4, 0.8, 1.3, 0.9]
    runs = [measured("goodput", CHAT, r, [x * f for x in FAST]) for r, f in enumerate(factors)]
    runs += [measured("off", CHAT, r, FAST) for r in range(len(factors))]
    (found,) = speed_ups(matrix(), runs_of(*runs), "goodput")
    assert found.verdict == "inside the noise" and found.low < 1 < found.high


def test_a_slow_minute_of_the_machine_cancels_within_a_repetition():
    factors = [1.0, 5.0, 1.0]
    runs = [measured("goodput", CHAT, r, [x * f for x in FAST]) for r, f in enumerate(factors)]
    runs += [measured("off", CHAT, r, [x * f for x in SLOW]) for r, f in enumerate(factors)]
    (found,) = speed_ups(matrix(), runs_of(*runs), "goodput")
    assert (found.ratio, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0), rel=0.15)


def test_the_interval_covers_the_true_ratio_as_often_as_it_says():
    """Repetitions and requests with log-normal noise: about 90 % of the intervals hold the true
    ratio."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        common = np.exp(rng.normal(0, 0.05, (8, 1, 2)))
        latencies = list(common * np.exp(rng.normal(0, 0.1, (8, 12, 2))) * [1.0, 1.3])
        low, high = bootstrap_interval(latencies)
        held += low <= 1.3 <= high
    assert 165 <= held <= 198  # 200 x 0.9 is 180


def test_two_repetitions_settle_nothing():
    """However clear it looks: whole runs differ, and two do not tell by how much."""
    runs = [
        measured(name, CHAT, r, x)
        for r in range(2)
        for name, x in (("goodput", FAST), ("off", SLOW))
    ]
    (found,) = speed_ups(matrix(), runs_of(*runs), "goodput")
    assert found.low > 1 and found.verdict == "too few repetitions"


def test_only_what_both_have_is_compared():
    runs = runs_of(
        measured("goodput", CHAT, 0, FAST),
        measured("off", CHAT, 1, FAST),
        measured("off", CODE, 0, FAST),
    )
    assert speed_ups(matrix(), runs, "goodput") == []


def test_figures_of_a_cell_are_over_all_its_repetitions():
    runs = runs_of(measured("off", CHAT, 0, [1.0, 2.0]), measured("off", CHAT, 1, [3.0, 4.0]))
    (found,) = cell_figures(matrix(), runs)
    assert found.end_to_end.mean == 2.5 and found.repetitions == 2
    assert found.tokens_per_second == pytest.approx((20 / 2 + 20 / 4) / 2)
    assert (found.acceptance, found.mean_k) == (0.5, 2.0)


def test_the_best_fixed_length_is_known_for_each_cell_afterwards():
    runs = runs_of(
        measured("fixed:3", CHAT, 0, FAST),
        measured("off", CHAT, 0, FAST),
        measured("off", CODE, 0, FAST),
    )
    assert best_fixed(matrix(), cell_figures(matrix(), runs)) == {CHAT.name: "fixed:3"}
