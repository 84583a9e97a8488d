"""Where all drafts of a step share a length, each length is known by what its steps really took."""

import factories
import numpy as np
import pytest
from drafter_cases import LOOKUP, found

from smartspec.control import (
    Controller,
    CostCurve,
    DrafterSpec,
    DrafterView,
    LatencyModel,
    StepSeconds,
)
from smartspec.control.latency.measured import MeasuredSeconds
from smartspec.control.uniform import Uniform

NUM_STEPS = 800
TARGET = CostCurve.linear(0.02, 0.001)
AHEAD = DrafterSpec("eagle3", has_passes=True, kept_passes=1)


def play(
    seconds_of,
    *,
    rows=lambda step: 16,
    acceptance=0.6,
    drafter=LOOKUP,
    prefill=lambda step: 0,
):
    """The length of each step of the second half. seconds_of: of a step, by its decoding requests,
    its length, and its prefill tokens."""
    rng = np.random.default_rng(0)
    costs = (CostCurve.linear(0.0001, 0.0),) if drafter.has_passes else ()
    controller = Controller(
        Uniform((1, 4)), 4, LatencyModel(TARGET, costs), drafters=(drafter,), strict=True
    )
    lengths = []
    for step in range(NUM_STEPS):
        num, fed = rows(step), prefill(step)
        some = DrafterView(np.full(num, 4)) if drafter.has_passes else found([4] * num)
        view = factories.make_view(num, drafters=(some,), now=float(step), row_caps=4, prefill=fed)
        chains, noise = factories.draw_chains(rng, acceptance, (num, 4)), rng.normal(1.0, 0.05)
        outcome = factories.play_step(
            controller,
            view,
            chains,
            lambda _, keep, num=num, fed=fed, noise=noise: {
                "seconds": StepSeconds(0.0, seconds_of(num, int(keep.max()), fed) * noise, 0.0)
            },
        )
        lengths.append(int(outcome.verified.max()))
    return lengths[NUM_STEPS // 2 :]


def test_a_length_whose_steps_take_long_is_left_although_its_tokens_are_few():
    """No curve over tokens says that a step of length 1 takes twice as long as one of length 4."""
    lengths = play(lambda num, length, fed: {0: 0.030, 1: 0.060, 4: 0.040}[length])
    assert lengths.count(4) > 0.97 * len(lengths)
    lengths = play(lambda num, length, fed: {0: 0.030, 1: 0.035, 4: 0.150}[length])
    assert lengths.count(1) > 0.97 * len(lengths)


def test_drafts_for_the_next_step_are_as_long_as_pays_beside_the_usual_prefill():
    """Beside prefill there is no captured graph: each draft token takes several times as long."""

    def took(num, length, fed):
        return 0.02 + num * length * (0.0011 if fed else 0.0001) + 0.004 * bool(fed)

    def shortest_share(prefill):
        lengths = play(
            took, drafter=AHEAD, prefill=prefill, rows=lambda step: 16 - bool(prefill(step))
        )
        return sum(length < 4 for length in lengths) / len(lengths)

    assert shortest_share(lambda step: 0) < 0.05
    assert shortest_share(lambda step: 100 if step % 8 else 0) > 0.9


def test_another_profile_changes_no_measured_time():
    view, times = factories.make_view(8), MeasuredSeconds()
    times.use(LatencyModel(TARGET))
    times.observe(3, 2, view, 0.07)
    times.use(LatencyModel(CostCurve.linear(0.001, 0.03)))
    assert times.seconds(3, [2], view, 0.0) == pytest.approx([0.07])


def test_a_length_that_was_not_timed_takes_the_change_of_its_nearest():
    view, times = factories.make_view(8), MeasuredSeconds()
    times.use(LatencyModel(TARGET))
    profiled = times.seconds(3, [0, 2, 4], view, 0.0)
    times.observe(3, 2, view, 1.5 * profiled[1])
    assert times.seconds(3, [0, 2, 4], view, 0.0) == pytest.approx(1.5 * profiled)
    assert times.seconds(4, [4], view, 0.0) == pytest.approx(1.5 * profiled[2:]), (
        "of the nearest size"
    )


def test_each_length_is_tried_once_where_more_requests_come_than_ever_before():
    """Larger drafts may be believed to cost little because no step was so large yet."""
    costs = {0: 0.030, 1: 0.032, 4: 0.036}
    lengths = play(
        lambda num, length, fed: costs[length],
        rows=lambda step: 64 if step >= NUM_STEPS // 2 else 4,
    )
    assert {*lengths[:40]} == {0, 1, 4}


@pytest.mark.parametrize("acceptance", [0.1, 0.9])
def test_trials_cost_little(acceptance):
    """Whatever is best, of 16 steps at most one is another length, and those that lose much are
    rare."""
    costs = {0: 0.030, 1: 0.045, 4: 0.090}
    lengths = play(lambda num, length, fed: costs[length], acceptance=acceptance)
    usual = max({*lengths}, key=lengths.count)
    assert sum(length != usual for length in lengths) <= len(lengths) / 16 + 1
    speed = {k: (1 + sum(acceptance**j for j in range(1, k + 1))) / costs[k] for k in costs}
    assert speed[usual] == max(speed.values())
