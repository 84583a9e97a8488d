"""Drafts in passes are considered where they are expected to gain more than what was found and the host's time."""

from types import SimpleNamespace

import numpy as np
import pytest
from drafter_cases import LOOKUP, MODEL
from factories import learn, make_outcome, make_view

from smartspec.control.controller import Controller
from smartspec.control.goodput.budget import Budget
from smartspec.control.goodput.found_first import FoundFirst
from smartspec.control.goodput.policy import Goodput
from smartspec.control.goodput.settings import BudgetSettings
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import StepSeconds

SPACING = 16


class Choices:
    """Stands for the policy: every choice of found drafts gains so much, and so do drafts in passes."""

    def __init__(self, found: float, passes: float | None):
        self.found, self.passes, self.asked = found, passes, []

    def of_found(self):
        self.asked.append("found")
        return SimpleNamespace(plan=SimpleNamespace(gain=self.found, off_seconds=0.01), gain_of_passes=None)

    def of_all(self):
        self.asked.append("all")
        gain = max(self.found, self.passes or 0.0)
        return SimpleNamespace(plan=SimpleNamespace(gain=gain, off_seconds=0.01), gain_of_passes=self.passes)


@pytest.mark.parametrize(
    ("found", "passes", "passes_seconds", "wants_all"),
    [
        (0.1, 0.3, 0.0, True),
        (0.3, 0.3, 0.0, False),
        (0.0, 0.0, 0.0, False),
        (0.0, None, 0.0, False),
        (0.1, 0.3, 0.0019, True),
        (0.1, 0.3, 0.0021, False),
    ],
)
def test_drafts_in_passes_are_considered_where_they_gain_more(found, passes, passes_seconds, wants_all):
    """The price is a share of a step of 10 ms."""
    chooser, choices = FoundFirst(SPACING), Choices(found, passes)
    chosen = [chooser.choose(1, passes_seconds, choices.of_found, choices.of_all) for _ in range(4 * SPACING)]
    num_all = choices.asked.count("all")
    assert num_all == (4 * SPACING if wants_all else 1 + 4), "they are planned anew every so many steps"
    assert all(each.plan.gain == max(found, passes or 0.0) for each in chosen) == (
        wants_all or found >= (passes or 0.0)
    )


def test_batch_sizes_are_known_apart_and_what_changes_is_seen():
    chooser, choices = FoundFirst(SPACING), Choices(0.1, 0.0)
    for _ in range(SPACING):
        chooser.choose(1, 0.0, choices.of_found, choices.of_all)
    choices.asked.clear()
    chooser.choose(8, 0.0, choices.of_found, choices.of_all)
    assert choices.asked == ["all"]
    choices.passes = 0.5
    for _ in range(SPACING):
        chooser.choose(1, 0.0, choices.of_found, choices.of_all)
    choices.asked.clear()
    chooser.choose(1, 0.0, choices.of_found, choices.of_all)
    assert "all" in choices.asked


def steps_of(accepted_of_model: int, num_steps: int = 400) -> tuple[list[str], list[bool]]:
    """What drafted in each step of one request with a model and, in every other step, a found draft of 4 tokens, which
    is right; and whether drafts in passes were considered."""
    curve = CostCurve(knots=(1.0, 16.0), slopes=(0.0, 0.001), constant=0.02)
    latency = LatencyModel(curve, (None, CostCurve.linear(0.004, 0.0001)))
    controller = Controller(Goodput(), 8, latency, drafters=(LOOKUP, MODEL))
    drafted, considered = [], []
    for step in range(num_steps):
        view = make_view(1, found_lengths=4 * (step % 2), lag=0)
        plan = controller.plan(view)
        number, length = int(plan.drafter[0]), int(plan.lengths[0])
        accepted = min(length, 4 if number == 0 else accepted_of_model)
        drafted.append("-" if number < 0 else (LOOKUP, MODEL)[number].name)
        considered.append(plan.settled is not None and plan.settled.best.gain_of_passes is not None)
        seconds = StepSeconds(0.004 * (number == 1) * length, 0.02 + 0.0001 * length, 0.001)
        outcome = make_outcome(view, plan, plan.lengths, np.array([accepted]), seconds=seconds)
        learn(controller, outcome)
    return drafted, considered


def test_a_model_that_is_never_right_is_seldom_considered_and_what_is_found_is_drafted():
    drafted, considered = steps_of(accepted_of_model=0)
    assert drafted[101::2].count("lookup") > 140 and "model" not in drafted[100:][1::2]
    assert sum(considered[100:]) < 0.2 * 300


def test_a_model_that_is_right_drafts_where_nothing_is_found():
    drafted, considered = steps_of(accepted_of_model=8)
    assert drafted[100::2].count("model") > 130
    assert sum(considered[100:]) > 140


@pytest.mark.parametrize("considers_each", [1, 16])
def test_considering_them_does_not_use_up_what_queries_may_take(considers_each):
    """Found drafts save twice what looking for them takes. Drafts in passes save nothing: where they are seldom
    considered, drafters are still queried."""
    budget, plain, query, passes = Budget(BudgetSettings()), 0.0002, 0.0004, 0.002
    queried = []
    for step in range(4000):
        queried.append(budget.may_query(4))
        with_passes = queried[-1] and step % considers_each == 0
        host = plain + query * queried[-1] + passes * with_passes
        if queried[-1]:
            budget.compare(4, 0.01, 0.01 + 2 * query, 0.0, 2 * query, False)
        seconds = StepSeconds(0.0, 0.01, host)
        budget.settle(4, seconds, queried=queried[-1], with_passes=with_passes, has_prefill=False)
    if considers_each == 16:
        assert np.mean(queried[1000:]) > 0.95
        assert budget.passes_seconds(4) == pytest.approx(passes, rel=0.1)
    else:
        assert np.mean(queried[1000:]) < 0.5
