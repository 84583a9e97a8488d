"""Step times from SGLang's calls, overlapped and not, beside prefill."""

import pytest

from smartspec.sglang_plugin.timeline import Timeline


def test_overlapped_steps_last_from_end_to_end():
    timeline = Timeline()
    timeline.end_prefill(0.0)
    timeline.launch(4, 3, 0.5)
    timeline.launch(4, 2, 0.6)
    step, seconds = timeline.end(4, 1.5)
    assert (step.steps, seconds) == (3, 1.0)
    timeline.launch(4, 1, 1.6)
    step, seconds = timeline.end(4, 3.5)
    assert (step.steps, seconds) == (2, 2.0)


def test_a_step_that_nothing_runs_beside_lasts_from_its_launch():
    timeline = Timeline()
    for begin in (0.0, 10.0):
        timeline.launch(1, 3, begin)
        assert timeline.end(1, begin + 2.0)[1] == 2.0


def test_a_step_begins_when_prefill_before_it_has_ended():
    timeline = Timeline()
    timeline.launch(2, 1, 0.0)
    timeline.end(2, 1.0)
    timeline.launch(3, 1, 1.1)  # beside prefill
    timeline.end_prefill(4.0)
    timeline.launch(3, 1, 4.1)
    assert timeline.end(3, 5.0)[1] == 1.0


def test_without_the_hook_a_step_beside_prefill_has_no_time():
    timeline = Timeline()
    timeline.launch(3, 1, 1.0)
    timeline.launch(3, 1, 4.1)
    assert timeline.end(3, 5.0)[1] is None
    assert timeline.end(3, 6.5)[1] == 1.5


def test_an_outcome_of_another_batch_is_no_step():
    timeline = Timeline()
    timeline.launch(3, 1, 0.0)
    assert timeline.end(2, 1.0) is None
    assert timeline.end(3, 2.0) is None


def test_a_launch_without_an_outcome_is_forgotten():
    timeline = Timeline()
    for steps in (7, 3, 1):
        timeline.launch(2, steps, float(steps))
    assert timeline.end(2, 9.0)[0].steps == 3


@pytest.mark.parametrize("now", [1.0, 0.5])
def test_a_time_is_never_zero(now):
    timeline = Timeline()
    timeline.launch(1, 1, 1.0)
    assert timeline.end(1, now)[1] > 0
