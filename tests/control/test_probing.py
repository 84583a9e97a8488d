"""Probes of a draft model that is off: within what the step has room for, and of rows that may draft."""

from dataclasses import replace

import numpy as np
import pytest
from drafter_cases import MODEL, lagging

from smartspec.control.controller import Controller
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import UNLIMITED, BatchView, Drafted, StepFeedback, StepSeconds

K, ROWS = 4, 16
TARGET = CostCurve(knots=(1.0, 16.0), slopes=(0.0002, 0.0012), constant=0.03)
DRAFT = CostCurve.linear(0.003, 0.00005)


def probes(policy, num_steps=400, budget=UNLIMITED, num_opted_out=0):
    """Lengths, int [n, ROWS], of the drafts that a model which is never right is still asked for."""
    controller = Controller(policy, K, LatencyModel(TARGET, (DRAFT,)), drafters=(MODEL,), strict=True)
    zeros = np.zeros(ROWS, dtype=int)
    longest = np.where(np.arange(ROWS) < num_opted_out, 0, K)
    view = BatchView(np.arange(ROWS), zeros + 50, longest, (lagging(ROWS),), draft_token_budget=budget)
    made = []
    for step in range(num_steps):
        now = replace(view, now=float(step))
        plan = controller.plan_draft(now)
        keep = controller.plan_verify(now, plan, Drafted(plan.lengths))
        seconds = StepSeconds(
            keep.max() * float(DRAFT.seconds(ROWS)), float(TARGET.seconds(ROWS + int(keep.sum()))), 0.0
        )
        tested = np.minimum(keep, 1)
        controller.observe(StepFeedback(now, plan, plan.lengths, keep, tested, zeros, ROWS, seconds))
        if (controller.policy.note or "").startswith("probe"):
            made.append(plan.lengths)
    return np.array(made).reshape(-1, ROWS)


@pytest.mark.parametrize("budget", [0, 1, 3, 7, 9])
def test_probes_stay_within_the_steps_budget(budget):
    lengths = probes("goodput", budget=budget)
    assert (lengths.sum(axis=1) <= budget).all()
    assert len(lengths) or budget < 7, "with little room there is little to gain from knowing"


def test_uniform_probes_have_an_allowed_length_for_all_rows():
    lengths = probes("uniform:2,4", num_steps=1500)
    assert len(lengths) and (lengths == 2).all()
    assert not len(probes("uniform:2,4", num_steps=1500, budget=2 * ROWS - 1))


@pytest.mark.parametrize("num_opted_out", [8, ROWS])
def test_rows_that_may_not_draft_do_not_displace_the_others(num_opted_out):
    """They never draft, so least is known of them: eight of them kept a model that was off from ever being probed."""
    lengths = probes("goodput", num_opted_out=num_opted_out)
    assert not lengths[:, :num_opted_out].any()
    assert bool(len(lengths)) == (num_opted_out < ROWS)
