"""Ratios within a repetition, and what is inside the noise."""

import numpy as np
import pytest
from report_cases import CHAT, CODE, matrix, measured

from smartspec.report.results import Results
from smartspec.report.speed_ups import bootstrap_interval

FAST, SLOW = [1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.8, 2.0]


def results(*runs) -> Results:
    return Results(matrix(), {run.key: run for run in runs}, {}, {}, "", "goodput")


def of_chat(goodput: list[list[float]], off: list[list[float]]):
    """The one speed-up, of the seconds of each repetition."""
    runs = [measured("goodput", CHAT, r, seconds) for r, seconds in enumerate(goodput)]
    runs += [measured("off", CHAT, r, seconds) for r, seconds in enumerate(off)]
    (found,) = results(*runs).speed_ups
    return found


def scaled(seconds: list[float], factors: list[float]) -> list[list[float]]:
    return [[x * factor for x in seconds] for factor in factors]


def test_a_clear_difference_is_faster_or_slower_and_the_worst_comes_first():
    runs = [
        measured(name, cell, r, seconds)
        for r in range(3)
        for cell, of_cell in ((CHAT, (FAST, SLOW)), (CODE, (SLOW, FAST)))
        for name, seconds in zip(("goodput", "off"), of_cell, strict=True)
    ]
    found = results(*runs).speed_ups
    assert [(each.cell, each.other, each.verdict) for each in found] == [
        (CODE, "off", "slower"),
        (CHAT, "off", "faster"),
    ]
    assert [each.ratio for each in found] == pytest.approx([0.5, 2.0])
    assert found[0].repetitions == 3 and found[0].num_pairs == 12 and found[0].equal_answers == 1.0


def test_machine_noise_between_repetitions_is_noise():
    """Each repetition alone looks like a clear difference, once for one and once for the other."""
    factors = [0.7, 1.4, 0.8, 1.3, 0.9]
    found = of_chat(scaled(FAST, factors), [FAST] * len(factors))
    assert found.verdict == "inside the noise" and found.low < 1 < found.high


def test_a_slow_minute_of_the_machine_cancels_within_a_repetition():
    found = of_chat(*(scaled(seconds, [1.0, 5.0, 1.0]) for seconds in (FAST, SLOW)))
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
    found = of_chat([FAST] * 2, [SLOW] * 2)
    assert found.low > 1 and found.verdict == "too few repetitions"


def test_only_what_both_have_is_compared():
    runs = (("goodput", CHAT, 0), ("off", CHAT, 1), ("off", CODE, 0))
    assert results(*(measured(*run, FAST) for run in runs)).speed_ups == []


def test_figures_of_a_cell_are_over_all_its_repetitions():
    runs = measured("off", CHAT, 0, [1.0, 2.0]), measured("off", CHAT, 1, [3.0, 4.0])
    (found,) = results(*runs).figures
    assert found.end_to_end_seconds.mean == 2.5 and found.repetitions == 2
    assert found.tokens_per_second == pytest.approx((20 / 2 + 20 / 4) / 2)
    assert (found.acceptance, found.mean_k) == (0.5, 2.0)


def test_the_best_fixed_length_is_known_for_each_cell_afterwards():
    runs = (("fixed:3", CHAT), ("off", CHAT), ("off", CODE))
    of = results(*(measured(name, cell, 0, FAST) for name, cell in runs))
    assert of.best_fixed == {CHAT.name: "fixed:3"}
