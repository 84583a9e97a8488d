"""`policies.py gpu`: times are the measured ones, steps emit what they should, changes are seen."""

from dataclasses import replace

import numpy as np
import pytest
from lib.gpu_replay.cells import CELLS, Row, cells_of, play, play_cells, steps_to_see
from lib.gpu_replay.host import Host
from lib.gpu_replay.page import page
from lib.gpu_replay.step_times import CARDS, LEVELS, StepTimes, read_step_times


@pytest.mark.parametrize("card", CARDS)
def test_times_are_the_measured_ones_and_grow_with_requests_and_length(card):
    times = read_step_times(card)
    for kind in (times.plain, times.mixed):
        assert (kind[1:] > 0.97 * kind[:-1]).all() and (kind[:, 1:] >= kind[:, :-1]).all()
    assert (times.mixed >= times.plain).all()
    milliseconds = {"h100": 7.12, "h200": 5.43}
    assert 1e3 * times.seconds(1, 1, 0) == pytest.approx(milliseconds[card], rel=1e-3)


def test_an_answer_takes_a_step_for_each_token_or_each_draft():
    """One request. Steps of a second without drafts, of two with drafts that are all right."""
    seconds_of_step = np.array([[1.0], [2.0], [2.0], [2.0]]) * np.ones(len(LEVELS))
    times = StepTimes(seconds_of_step, seconds_of_step)
    seconds = {}
    for policy in ("off", "fixed:3"):
        steps = Host(times, policy, 1, "1", seed=0).run(200.0)
        first = next(i for i, step in enumerate(steps) if i and step.length is None)  # 2nd prompt
        assert 128 <= sum(step.tokens for step in steps[:first]) <= 256
        seconds[policy] = sum(step.seconds for step in steps[:first])
    assert seconds["off"] / seconds["fixed:3"] == pytest.approx(2.0, rel=0.05)


def test_a_change_is_seen_when_a_good_length_stays():
    assert steps_to_see((1, 1, 3, 1, 1, *[1] * 9, 3, 3, 1, 3, 3, 3, 3, 3, 3, 3), {3}) == 14
    assert steps_to_see((1, 3, 1, 1), {3}) is None
    assert steps_to_see((3, 1, 3, 3), {3, 5}) == 0


def test_the_same_run_comes_out_the_same_and_a_fixed_length_is_never_better_than_the_best():
    cell = replace(cells_of("falls 16")[0], first=0.1, last=0.4)
    times = read_step_times("h100")
    assert play(times, cell, "uniform:1,3,5", 0) == play(times, cell, "uniform:1,3,5", 0)
    rows = play_cells("h100", ["off", "fixed:5", "uniform:1,3,5"], [cell], seeds=1, processes=1)
    of_best = {row.policy: row.of_best for row in rows}
    assert max(of_best["off"], of_best["fixed:5"]) == 1.0


def test_cells_are_chosen_by_kind_or_name():
    assert cells_of("") == list(CELLS)
    names = [cell.name for cell in cells_of("rises, burst 128")]
    assert names == ["rises 16", "rises 64", "rises 128", "burst 128"]
    with pytest.raises(ValueError, match="no cell is 'rise': use mixed, low, high, falls, rises"):
        cells_of("rise")


def test_the_page_has_the_worst_cell_first():
    def row(cell: int, of_best: float) -> Row:
        return Row(CELLS[cell], "uniform:1,3,5", 3, of_best, 1.0, {1: 0.5, 3: 0.5}, (4, None))

    rows = {"h100": [row(0, 0.98), row(1, 0.99)], "h200": [row(0, 1.0), row(1, 0.9)]}
    text = page(rows, "python benchmarks/policies.py gpu", 2)
    assert text.index("| mixed 4 | 0.990 |") < text.index("| mixed 1 | 0.980 |")
    assert "**0.900**" in text and "| 4, never |" in text
    assert "| h200 | `uniform:1,3,5` | 2 | 0.949 |" in text
