"""Between two plans in full, rows are planned at the price that the last one settled."""

from dataclasses import replace

import factories
import numpy as np
import pytest
from drafter_cases import LOOKUP, MODEL, estimates_of, found, lagging

from smartspec.control.goodput.at_price import HeldPrices
from smartspec.control.goodput.prices import best_choice
from smartspec.control.goodput.settings import GoodputSettings
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel

K, ROWS = 6, 8
LATENCY = LatencyModel(
    CostCurve(knots=(1.0, 16.0), slopes=(2e-4, 1e-3), constant=0.02), (None, CostCurve.linear(1e-3, 1e-5))
)


def make_view(**changes):
    view = factories.make_view(ROWS, found_lengths=0, lag=0, max_draft_tokens=K)
    return replace(view, drafters=(found([K] * 4 + [0] * 4, [3] * ROWS), lagging(ROWS)), **changes)


def make_estimates(seed=0, num_learned=1):
    rng = np.random.default_rng(seed)
    survival = [np.cumprod(rng.uniform(0.3, 0.95, (ROWS, K)), axis=1) for _ in range(2)]
    return replace(estimates_of(LATENCY, *survival), num_learned=num_learned)


def held_and_full(view, estimates, later_view=None, later=None):
    held, choice = HeldPrices(), best_choice(view, estimates, GoodputSettings())
    held.keep(view, estimates, choice)
    return held.choice(later_view or view, later or estimates, is_uniform=False), choice


@pytest.mark.parametrize("seed", range(20))
def test_for_the_same_step_it_is_the_plan_in_full(seed):
    at_price, full = held_and_full(make_view(), make_estimates(seed))
    assert full.plan.num_draft_tokens
    assert at_price.plan.lengths.tolist() == full.plan.lengths.tolist()
    assert at_price.draft_plan.drafter.tolist() == full.draft_plan.drafter.tolist()
    assert at_price.plan.off_seconds == pytest.approx(full.plan.off_seconds)


def test_it_holds_until_something_is_learned_and_for_nobody_who_does_not_say():
    view = make_view()
    assert held_and_full(view, make_estimates(num_learned=1), later=make_estimates(num_learned=1))[0] is not None
    assert held_and_full(view, make_estimates(num_learned=1), later=make_estimates(num_learned=2))[0] is None
    assert held_and_full(view, make_estimates(num_learned=None))[0] is None


def test_a_new_request_that_may_begin_with_a_draft_prefill_is_planned_in_full():
    view, late = make_view(), lagging(ROWS)
    late = replace(late, lag=np.array([0] * (ROWS - 1) + [500]))
    new = replace(view, request_ids=np.arange(ROWS) + 1, drafters=(view.drafters[0], late))
    assert held_and_full(view, make_estimates(), new)[0] is None
    known = replace(view, drafters=(view.drafters[0], late))
    lengths = held_and_full(view, make_estimates(), known)[0].plan.lengths
    assert lengths[-1] == 0, "one that was there waits for the next plan in full"


def test_a_drafter_that_the_plan_left_out_drafts_nothing():
    """The time of its passes is not in the settled prices."""
    latency = LatencyModel(LATENCY.target, (None, CostCurve.linear(1.0, 0.0)))
    estimates = replace(make_estimates(), latency=latency)
    at_price, full = held_and_full(make_view(), estimates)
    assert not (full.draft_plan.drafter == 1).any() and not (at_price.draft_plan.drafter == 1).any()
    assert at_price.is_found and estimates.drafters == (LOOKUP, MODEL)


def test_no_more_is_planned_than_the_step_has_room_for():
    view = make_view()
    assert held_and_full(view, make_estimates(), replace(view, draft_token_budget=2))[0] is None
