"""Input that cannot be true is named: kind, what, and the value."""

from dataclasses import replace

import factories
import numpy as np
import pytest
from drafter_cases import found, free_test, lagging

from smartspec.control import BatchView, FreeTests, Outcome, Plan, StepSeconds
from smartspec.control.checks import kind_of, outcome_problem, view_problem

R = 2


def column(*values) -> np.ndarray:
    return np.array(values)


def make_view(**changes) -> BatchView:
    drafters = found(column(3, 0), column(4, 0)), lagging(2, column(0, 3))
    view = factories.make_view(
        [7, 8], context_tokens=[10, 20], row_caps=[5, 0], drafters=drafters, now=2.0
    )
    return replace(view, **changes)  # as they are: not even their shapes need be right


def make_outcome(**changes) -> Outcome:
    plan, free = Plan(column(3, 0), column(1, -1)), (free_test(column(2, 1), column(-1, 1)),)
    outcome = factories.make_outcome(
        make_view(), plan, column(2, 0), column(1, 0), drafted=column(3, 0), free_tests=free
    )
    return replace(outcome, **changes)


def test_sound_input_has_no_problem():
    outcome = make_outcome()
    assert view_problem(outcome.view, last_now=2.0) is None
    assert outcome_problem(outcome.view, outcome, max_draft_tokens=3) is None
    assert outcome_problem(make_view(), outcome) is None, "an equal view is as good as the same"


def test_a_step_of_prefills_alone_is_sound():
    view = factories.make_view(0, found_lengths=0, num_prefills=1, prefill_tokens=64)
    outcome = factories.make_outcome(view, num_emitted=1)
    assert view_problem(view) is None and outcome_problem(view, outcome) is None


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"now": float("nan")}, "clock", ["nan"]),
        ({"drafters": ()}, "drafter", ["0 drafters", "the controller 2"]),
        ({"now": 0.5}, "clock", ["0.5", "before 1.0", "backwards"]),
        ({"context_tokens": column(10, -4)}, "count", ["context_tokens", "-4"]),
        (
            {"drafters": (found(column(1, 1)), lagging(2, column(0, -9)))},
            "count",
            ["drafters[1].lag", "-9"],
        ),
        (
            {"drafters": (found(column(3, -2), column(0, 0)), lagging(2))},
            "count",
            ["drafters[0].lengths", "-2"],
        ),
        ({"prefill_tokens": -5}, "count", ["prefill_tokens", "-5"]),
        ({"prefill_attended_tokens": float("nan")}, "count", ["prefill_attended_tokens", "nan"]),
        ({"context_tokens": column(10)}, "shape", ["context_tokens", "(1,)", "2"]),
        ({"weights": column(1.0, 1.0, 1.0)}, "shape", ["weights", "(3,)"]),
        ({"request_ids": column(7, 7)}, "request", ["[7, 7]"]),
        ({"weights": column(1.0, float("inf"))}, "weight", ["inf"]),
        ({"weights": column(1.0, -2.0)}, "weight", ["-2.0"]),
    ],
)
def test_views(changes, kind, words):
    problem = view_problem(make_view(**changes), last_now=1.0, num_drafters=2)
    assert kind_of(problem) == kind
    assert all(word in problem for word in words), problem


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"seconds": StepSeconds(0.0, float("nan"), 0.0)}, "seconds", ["target", "nan"]),
        ({"seconds": StepSeconds(0.0, 0.02, float("inf"))}, "seconds", ["host", "inf"]),
        ({"seconds": StepSeconds(0.0, 0.0, 0.001)}, "seconds", ["target", "0"]),
        ({"seconds": StepSeconds(-0.1, 0.02, 0.0)}, "seconds", ["draft", "-0.1"]),
        ({"verified": column(4, 0)}, "count", ["row 0", "verified 4", "drafted 3"]),
        ({"tested": column(2, 1)}, "count", ["row 1", "tested 1"]),
        ({"plan": Plan(column(3, 0), column(2, -1))}, "drafter", ["[2]", "there are 2"]),
        ({"accepted": column(3, 0)}, "count", ["accepted 3", "verified 2"]),
        (
            {"free_tests": (FreeTests(column(0, 0), column(1, 0), column(2, 0)),)},
            "count",
            ["row 0", "matched 2 of 1"],
        ),
        ({"drafted": column(9, 0)}, "length", ["9", "5"]),
        ({"tested": column(1)}, "shape", ["tested", "(1,)"]),
        ({"num_emitted": -1}, "count", ["num_emitted is -1"]),
        ({"num_emitted": 4}, "count", ["num_emitted is 4", "0 to 3"]),
        ({"view": make_view(request_ids=column(7, 9))}, "request", ["[9]"]),
        ({"view": make_view(request_ids=column(8, 7))}, "request", ["[8, 7]", "[7, 8]", "order"]),
    ],
)
def test_feedback(changes, kind, words):
    problem = outcome_problem(make_view(), make_outcome(**changes), max_draft_tokens=5)
    assert kind_of(problem) == kind
    assert all(word in problem for word in words), problem


def test_feedback_about_a_part_of_the_step_is_refused():
    """Else it would be learned from in part, until weights of all rows meet counts of some."""
    view = factories.make_view([7], found_lengths=0)
    problem = outcome_problem(make_view(), factories.make_outcome(view))
    assert "[7]" in problem and "[7, 8]" in problem


def test_feedback_without_a_planned_step_is_refused():
    assert "[7, 8]" in outcome_problem(None, make_outcome())
    view = factories.make_view(0, found_lengths=0, prefill_tokens=3)
    assert kind_of(outcome_problem(None, factories.make_outcome(view))) == "request"
