"""What a step is charged for tokens the draft model has not seen, and over how many steps they are spread."""

import numpy as np
import pytest

from smartspec.control.cost_curve import CostCurve
from smartspec.control.guard import Guard
from smartspec.control.latency import LatencyModel
from smartspec.control.policies.base import Estimates, no_drafts
from smartspec.control.policies.catch_up import MAX_STEPS, MIN_SHARE, CatchUpHorizon, charged_draft_seconds
from smartspec.control.policies.choice import best_choice
from smartspec.control.policies.goodput import Goodput
from smartspec.control.records import BatchView, DraftPlan, Offers, StepFeedback, StepSeconds

K, R = 3, 4
# Memory-bound up to 256 tokens: the first of them cost nothing.
DRAFT = CostCurve(knots=(1.0, 256.0), slopes=(0.0, 1e-4), constant=0.002)
LATENCY = LatencyModel(CostCurve(knots=(1.0, 256.0), slopes=(0.0, 1e-4), constant=0.03), DRAFT)


def make_view(unseen):
    return BatchView(
        request_ids=np.arange(R),
        context_tokens=np.full(R, 3000),
        max_draft_tokens=np.full(R, K),
        unseen_tokens=np.full(R, unseen),
        offers=Offers.none(R),
    )


def make_estimates(rate=0.7):
    survival = np.cumprod(np.full((R, K), rate), axis=1)
    return Estimates(survival, survival, LATENCY)


def step(view, plan):
    zeros = np.zeros_like(plan.lengths)
    seconds = StepSeconds(0.0, 0.03, 0.0)
    return StepFeedback(view, plan, plan.lengths, zeros, zeros, zeros, zeros - 1, view.num_rows, seconds)


def test_a_step_is_charged_its_share_of_the_whole_catch_up():
    """Not the time of a share of the tokens: a small pass is memory-bound, and a long prompt would seem free."""
    everybody, estimates = np.ones(R, dtype=bool), make_estimates()
    up_to_date, behind = make_view(0), make_view(3000)
    ordinary = LATENCY.draft_seconds(up_to_date, everybody, K)
    whole = LATENCY.draft_seconds(behind, everybody, 1)[1] - ordinary[1]
    assert whole > 1.0
    charged = charged_draft_seconds(behind, everybody, estimates, 100.0)
    assert charged[0] == 0.0
    assert charged[1:] - ordinary[1:] == pytest.approx(whole / 100, rel=0.01)
    assert np.array_equal(charged_draft_seconds(up_to_date, everybody, estimates, 100.0), ordinary)


@pytest.mark.parametrize("steps", [8.0, MAX_STEPS])
def test_a_longer_horizon_buys_what_a_short_one_cannot(steps):
    plan = best_choice(make_view(3000), make_estimates(), catch_up_steps=steps).draft_plan
    assert plan.lengths.any() == (steps == MAX_STEPS)


def test_the_horizon_follows_for_how_many_rows_drafts_pay():
    horizon = CatchUpHorizon()
    assert horizon.steps == MAX_STEPS
    for _ in range(1000):
        horizon.planned(0, R)
    assert horizon.steps == MAX_STEPS * MIN_SHARE
    for _ in range(1000):
        horizon.planned(R // 2, R)
    assert horizon.steps == pytest.approx(MAX_STEPS / 2, rel=0.01)
    horizon.planned(0, 0)  # prefill alone says nothing
    assert horizon.steps == pytest.approx(MAX_STEPS / 2, rel=0.01)


def test_drafts_that_are_off_are_no_reason_to_stay_off():
    """Catching up on 3,000 tokens costs more than a tenth of a request's lifetime brings, but not more than all of it.
    A policy whose drafts were kept off for long begins again; judged by what was done, it never would."""
    policy, estimates, view = Goodput(), make_estimates(), make_view(3000)
    assert policy.plan_draft(view, estimates).lengths.any()
    policy.guard.reason, policy.guard._remaining = "a test", 1000
    for _ in range(1000):
        assert not policy.plan_draft(view, estimates).lengths.any()
        policy.observe(step(view, no_drafts(R)))
    policy.guard = Guard()
    assert policy.plan_draft(view, estimates).lengths.any()


def test_steps_in_which_catching_up_would_never_pay_shorten_the_horizon():
    policy, view = Goodput(), make_view(30_000)
    for _ in range(200):
        assert not policy.plan_draft(view, make_estimates(0.3)).lengths.any()
        policy.observe(step(view, no_drafts(R)))
    assert policy.state()["catch_up_steps"] < MAX_STEPS / 4


def test_the_horizon_follows_how_long_requests_decode():
    """Four rows, one of which ends in every fifth step: lifetimes of 20 steps."""
    horizon, view = CatchUpHorizon(), make_view(0)
    everybody = DraftPlan(np.full(R, K), np.ones(R, dtype=bool))
    for number in range(2000):
        horizon.observe(step(view, everybody))
        if number % 5 == 0:
            horizon.request_ended(number // 5 % R)
    assert horizon.steps == pytest.approx(20, rel=0.02)


def test_requests_that_never_decoded_say_nothing_about_how_long_they_would_have():
    horizon, view = CatchUpHorizon(), make_view(0)
    horizon.request_ended(0)
    horizon.observe(step(view, DraftPlan(np.full(R, K), np.ones(R, dtype=bool))))
    for request_id in range(R, 200):
        horizon.request_ended(request_id)
    assert horizon.steps == MAX_STEPS
