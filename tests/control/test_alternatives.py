"""What else a step might have done is the answer to the question it was decided by."""

import factories
import numpy as np
import pytest
from drafter_cases import MODEL, estimates_of

from smartspec.control.controller import Controller
from smartspec.control.goodput.policy import Goodput
from smartspec.control.goodput.settings import BudgetSettings, GoodputSettings
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import StepSeconds

ROWS, K = 16, 6
NONE = np.zeros(ROWS, dtype=np.int64)
TARGET = CostCurve(knots=(0.0,), slopes=(4e-4,), constant=0.02, per_row=2e-3)
DRAFT = CostCurve.linear(5e-4, 1e-6)
SURVIVAL = np.cumprod(np.tile(np.linspace(0.4, 0.9, ROWS)[:, None], K), axis=1)
ESTIMATES = estimates_of(LatencyModel(TARGET, (DRAFT,)), model=SURVIVAL)
PREFILL = {"num_prefills": 1, "prefill_tokens": 400, "prefill_context_tokens": 400, "prefill_attended_tokens": 80_000.0}


def make_view(prefill=False, lags=False):
    lag = np.where(np.arange(ROWS) % 3, 300, 0) if lags else NONE
    more = PREFILL | {"num_waiting": 20} if prefill else {}
    return factories.make_view(ROWS, lag=lag, context_tokens=300, max_draft_tokens=K, **more)


def make_policy(uniform=None, overdrawn=False):
    policy = Goodput(uniform, settings=GoodputSettings(budget=BudgetSettings(share=0.0)))
    if overdrawn:
        policy.budget.reason = "a test"
    return policy


@pytest.mark.parametrize("prefill", [False, True])
@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("uniform", [None, (1, 3)])
def test_where_the_budget_is_overdrawn_the_first_alternative_is_what_would_have_been_done(prefill, lags, uniform):
    view = make_view(prefill, lags)
    wanted = make_policy(uniform).plan(view, ESTIMATES)
    policy = make_policy(uniform, overdrawn=True)
    assert not policy.plan(view, ESTIMATES).lengths.any()
    others = policy.plan(view, ESTIMATES).alternatives()
    assert wanted.lengths.any() and others[0][0] != "off"
    assert np.array_equal(others[0][1].lengths, wanted.lengths)
    assert np.array_equal(others[0][1].drafter, wanted.drafter)


def test_all_limits_are_planned_at_the_same_shadow_price_of_time(monkeypatch):
    """A limit that makes drafts worth less does not make the time of a mixed step cheaper. None is planned that changes
    nothing: those from the longest draft on."""
    policy, prices = make_policy(), []
    choose = policy._choose
    monkeypatch.setattr(policy, "_choose", lambda *a, **k: prices.append(choose(*a, **k)) or prices[-1])
    view = make_view(prefill=True)
    plan = policy.plan(view, ESTIMATES)
    plan.alternatives()
    assert len(prices) == 1 + plan.lengths.max() < K + 2 and len({choice.prices.time for choice in prices}) == 1


@pytest.mark.parametrize("prefill", [False, True])
def test_alternatives_are_others_than_the_chosen_plan(prefill):
    policy, view = make_policy(), make_view(prefill)
    plan = policy.plan(view, ESTIMATES)
    others = plan.alternatives()
    assert 1 <= len(others) <= 3
    assert all(other.lengths.sum() != plan.lengths.sum() for _, other in others)


def recorded(policy, view):
    """The record of one step in which all that was planned was verified, and nothing accepted."""
    latency, records = LatencyModel(TARGET, (DRAFT,)), []
    controller = Controller(policy, K, latency, drafters=(MODEL,), strict=True)
    controller.on_record = records.append
    plan = controller.plan(view)
    seconds = StepSeconds(draft=0.01, target=0.5, host=0.001)
    factories.learn(controller, factories.make_outcome(view, plan, accepted=NONE, seconds=seconds))
    return records[0]


@pytest.mark.parametrize("prefill", [False, True])
@pytest.mark.parametrize("lags", [False, True])
def test_an_alternative_has_the_goodput_it_would_have_if_it_were_chosen(prefill, lags):
    """Also after a step that took much longer than predicted."""
    view = make_view(prefill, lags)
    chosen, stopped = recorded(make_policy(), view), recorded(make_policy(overdrawn=True), view)
    assert chosen.lengths.any() and not stopped.lengths.any()
    assert stopped.alternatives[0].num_draft_tokens == chosen.lengths.sum()
    assert stopped.alternatives[0].goodput == pytest.approx(chosen.goodput, rel=1e-12)
    off = next(other for other in chosen.alternatives if other.label == "off") if prefill else None
    assert off is None or off.goodput == pytest.approx(stopped.goodput, rel=1e-12)
