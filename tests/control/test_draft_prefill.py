"""For which rows draft prefill pays, and what a step is charged for it."""

import factories
import numpy as np
import pytest
from drafter_cases import estimates_of

from smartspec.control.goodput.draft_prefill import begin_draft_prefill
from smartspec.control.goodput.policy import Goodput
from smartspec.control.goodput.prices import best_choice
from smartspec.control.goodput.settings import BudgetSettings, GoodputSettings
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.planner.lengths import LengthPlan

K, R = 3, 4
SETTINGS = GoodputSettings().draft_prefill
NOT_EXPLORING = GoodputSettings(budget=BudgetSettings(share=0.0))
# Memory-bound up to 256 tokens: the first of them cost nothing.
DRAFT = CostCurve(knots=(1.0, 256.0), slopes=(0.0, 1e-4), constant=0.002)
LATENCY = LatencyModel(CostCurve(knots=(1.0, 256.0), slopes=(0.0, 1e-4), constant=0.03), (DRAFT,))
THE_MODEL, NO_DRAFTER = np.zeros(R, dtype=int), np.full(R, -1)


def make_view(lag, context=3000, rows=R):
    return factories.make_view(rows, lag=lag, context_tokens=context, max_draft_tokens=K)


def make_estimates(rate=0.7):
    survival = np.cumprod(np.broadcast_to(rate, (K, R)).T, axis=1)
    return estimates_of(LATENCY, model=survival)


def who_begins(view, estimates, remaining_tokens=np.inf, length=K):
    """With drafts of that length for all and time at 100 tokens per second: 10 ms are worth a token."""

    def plan(drafter, draft_seconds):
        seconds = 0.03 + draft_seconds[:, length].sum()  # verifying costs nothing
        return LengthPlan(np.where(drafter >= 0, length, 0), length, 100.0, seconds, 100.0, 0.03, 0.1)

    drafter, seconds = begin_draft_prefill(
        view, THE_MODEL, NO_DRAFTER, estimates, SETTINGS, remaining_tokens, 100.0, plan
    )
    return drafter >= 0, seconds[0]


def test_a_step_is_charged_its_share_of_the_whole_draft_prefill():
    """Not the time of a share of the tokens: a small pass is memory-bound, and a long prompt would seem free."""
    estimates, up_to_date, lagging = make_estimates(), make_view(0), make_view(3000)
    ordinary = LATENCY.draft_seconds(up_to_date, THE_MODEL, K)[0]
    whole = LATENCY.draft_seconds(lagging, THE_MODEL, 1)[0, 1] - ordinary[1]
    assert whole > 1.0
    rows, charged = who_begins(lagging, estimates)
    assert rows.all()
    assert charged[0] == 0.0
    assert charged[1:] - ordinary[1:] == pytest.approx(whole / SETTINGS.max_steps, rel=0.01)
    rows, charged = who_begins(up_to_date, estimates)
    assert rows.all() and np.array_equal(charged, ordinary)


def test_a_row_begins_if_its_own_drafts_bring_more_than_its_draft_prefill_costs():
    """0.7 + 0.49 + 0.343 tokens per step, less 0.15 for a row's part of the passes, at 10 ms each and for 120 / (1 +
    1.53) steps, are 0.65 seconds: that is 6,500 tokens of draft prefill at 0.1 ms each. Rows that need none draft
    anyway."""
    view = make_view([0, 5400, 8000, 4])
    rows, charged = who_begins(view, make_estimates(), 120.0)
    assert rows.tolist() == [True, True, False, True]
    ordinary = LATENCY.draft_seconds(make_view(0), np.where(rows, 0, -1), 1)[0]
    assert charged[1] - ordinary[1] == pytest.approx(0.54 / (120 / 2.533), rel=0.1)


def test_draft_passes_count_as_a_price():
    """Where a step with drafts of 1.53 tokens a request takes 150 ms more, that time is worth more."""

    def begins(drafting_seconds):
        def plan(drafter, draft_seconds):
            return LengthPlan(np.where(drafter >= 0, K, 0), K, 100.0, 0.03 + drafting_seconds, 100.0, 0.03, 0.1)

        view, estimates = make_view(2000), make_estimates()
        drafter, _ = begin_draft_prefill(view, THE_MODEL, NO_DRAFTER, estimates, SETTINGS, 120.0, 100.0, plan)
        return drafter >= 0

    assert begins(0.006).all()
    assert not begins(0.15).any()


@pytest.mark.parametrize(("remaining_tokens", "begin"), [(300.0, True), (120.0, True), (8.0, False), (2.0, False)])
def test_where_requests_are_about_to_end_none_begins(remaining_tokens, begin):
    assert (who_begins(make_view(2000), make_estimates(), remaining_tokens)[0] == begin).all()


def test_who_is_hardly_accepted_does_not_begin():
    rates = np.array([0.7, 0.5, 0.1, 0.05])
    assert who_begins(make_view(1200), make_estimates(rates), 80.0)[0].tolist() == [True, True, False, False]


def test_that_a_long_request_ends_sooner_is_worth_more():
    assert not who_begins(make_view(12000), make_estimates(), 120.0)[0].any()
    assert who_begins(make_view([12000, 0, 0, 0], context=[12000, 10, 10, 10]), make_estimates(), 120.0)[0].all()


@pytest.mark.parametrize("tokens", [20.0, 400.0])
def test_what_short_answers_do_not_pay_long_ones_do(tokens):
    plan = best_choice(make_view(3000), make_estimates(), GoodputSettings(), remaining_tokens=tokens).draft_plan
    assert plan.lengths.any() == (tokens == 400.0)


def test_drafts_that_are_off_are_no_reason_to_stay_off():
    """A policy whose drafts were kept off for long begins again."""
    policy, estimates, view = Goodput(settings=NOT_EXPLORING), make_estimates(), make_view(1200)
    assert policy.plan(view, estimates).lengths.any()
    policy.budget.reason = "a test"
    for _ in range(1000):
        plan = policy.plan(view, estimates)
        assert not plan.lengths.any()
        policy.learn(plan, factories.make_outcome(view))
        policy.budget.reason = "a test"
    policy.budget.reason = None
    assert policy.plan(view, estimates).lengths.any()


def test_a_policy_learns_that_answers_are_short():
    """Drafters are prefilled with prompts of 1,200 tokens until requests turn out to end after eight tokens."""
    policy, estimates = Goodput(settings=NOT_EXPLORING), make_estimates()
    assert policy.plan(make_view(1200), estimates).lengths.any()
    for number in range(1, 100):
        ids = number * R + np.arange(R)
        for made in range(8):
            view = make_view(1200 + made, context=1200 + made, rows=ids)
            policy.learn(policy.plan(view, estimates), factories.make_outcome(view))
        for request_id in ids.tolist():
            policy.end(request_id)
    assert policy.state()["tokens_of_a_request"] == pytest.approx(8, rel=0.1)
    view = make_view(1200, rows=1000 + np.arange(R))
    assert policy.plan(make_view(0, rows=1000 + np.arange(R)), estimates).lengths.any(), "but for the prefill"
    assert not policy.plan(view, estimates).lengths.any()
