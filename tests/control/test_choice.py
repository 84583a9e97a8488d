"""What surrounds the planner: prefill, draft prefill, drafters, one length for all."""

from dataclasses import replace
from functools import partial

import factories
import numpy as np
import pytest
from drafter_cases import LOOKUP, MODEL, estimates_of, found, lagging

from smartspec.control.goodput import prices
from smartspec.control.goodput.settings import GoodputSettings
from smartspec.control.goodput.uniform import LengthTimes, plan_uniform
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.policy import Estimates
from smartspec.control.records import DrafterSpec

K = 4
CURVE = CostCurve(knots=(1.0, 16.0), slopes=(0.0002, 0.002), constant=0.03)
SETTINGS = GoodputSettings()
TARGET_ONLY = LatencyModel(CURVE)
WITH_DRAFT = LatencyModel(CURVE, (None, CostCurve.linear(0.002, 0.0002)))


def make_view(num_rows, found_length=K, lag=0, **changes):
    return factories.make_view(num_rows, found_lengths=found_length, lag=lag, max_draft_tokens=K, **changes)


def best_choice(view, estimates, **more):
    return prices.best_choice(view, estimates, SETTINGS, **more)


def found_accepted_at(rate, num_rows, latency=TARGET_ONLY):
    survival = np.cumprod(np.full((num_rows, K), rate), axis=1)
    return estimates_of(latency, survival)


def drafts_accepted_at(rate, num_rows):
    survival = np.cumprod(np.full((num_rows, K), rate), axis=1)
    return estimates_of(WITH_DRAFT, survival, survival)


PREFILL = {"num_prefills": 1, "prefill_tokens": 400, "prefill_context_tokens": 400, "prefill_attended_tokens": 80_000.0}


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_prefill_does_not_make_drafts_worth_more(rate):
    """Per second of a long step a draft token looks like a bargain; what it saves is the same as ever."""
    estimates, view = found_accepted_at(rate, 16), make_view(16)
    alone = best_choice(view, estimates)
    mixed = best_choice(replace(view, **PREFILL), estimates)
    assert mixed.plan.num_draft_tokens <= alone.plan.num_draft_tokens
    assert mixed.prices.time >= alone.plan.goodput
    assert mixed.prices.off == alone.plan.off_goodput
    assert alone.prices.time == alone.plan.goodput


def test_time_is_worth_more_while_many_wait_for_it():
    """Few decode yet, but every second of theirs delays a large batch, which makes more tokens of it."""
    estimates, view = found_accepted_at(0.6, 2), make_view(2, **PREFILL)
    few = best_choice(view, estimates)
    many = best_choice(replace(view, num_waiting=30), estimates)
    assert many.prices.time > 1.5 * few.prices.time
    assert many.plan.num_draft_tokens < few.plan.num_draft_tokens
    # The budget compares measurements: what those who wait would make of the time is only believed.
    assert many.prices.off == few.prices.off


def test_a_step_of_prefill_alone_has_nothing_to_decide():
    best = best_choice(make_view(0, **PREFILL), found_accepted_at(0.5, 0))
    assert best.draft_plan.lengths.shape == (0,)


def test_draft_prefill_is_bought_although_no_single_step_pays_for_it():
    view = make_view(8, found_length=0, lag=200)
    assert best_choice(view, drafts_accepted_at(0.8, 8)).draft_plan.lengths.any()
    one_step_seconds = float(WITH_DRAFT.draft_seconds(view, np.ones(8, int), 1)[1, -1])
    assert one_step_seconds > 0.1, "or the case would show nothing"


def test_draft_prefill_takes_no_longer_than_a_non_speculative_step_or_one_request_and_the_nearly_done_come_first():
    lag = np.array([150, 3, 90, 100, 2, 4000])
    view = make_view(6, found_length=0, lag=lag)
    plan = best_choice(view, drafts_accepted_at(0.9, 6)).draft_plan
    assert plan.drafter.tolist() == [-1, 1, 1, -1, 1, -1]
    off_seconds = float(WITH_DRAFT.target_seconds(view, np.zeros(1))[0])
    assert float(WITH_DRAFT.draft_seconds(view, plan.drafter, 1)[1, -1]) <= off_seconds
    alone = best_choice(make_view(1, found_length=0, lag=4000), drafts_accepted_at(0.9, 1)).draft_plan
    assert alone.drafter.tolist() == [1], "or it could never begin"
    lag = np.array([3, 2000, 2, 2500])
    plan = best_choice(make_view(4, found_length=0, lag=lag), drafts_accepted_at(0.9, 4)).draft_plan
    assert plan.drafter.tolist() == [1, 1, 1, -1], "nor while others are up to date"


def test_a_full_server_turns_drafts_on_again_although_few_can_begin_at_once():
    """Drafts for those who can begin do not pay for a draft pass, drafts for all would: an investment."""
    latency = LatencyModel(CostCurve.linear(0.03, 1e-4), (None, CostCurve.linear(0.004, 2e-5)))
    small, full = make_view(8, found_length=0, lag=100), make_view(64, found_length=0, lag=100)
    lengths = best_choice(full, replace(drafts_accepted_at(0.8, 64), latency=latency)).draft_plan.lengths
    assert 1 <= np.count_nonzero(lengths) < 32
    few = replace(drafts_accepted_at(0.1, 8), latency=latency)
    assert not best_choice(small, few).draft_plan.lengths.any(), "a bad drafter is no investment"


def test_a_budget_of_draft_tokens_is_kept():
    view = make_view(8, draft_token_budget=5)
    assert best_choice(view, found_accepted_at(0.9, 8)).plan.num_draft_tokens == 5


@pytest.mark.parametrize("rate", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("num_rows", [1, 4, 32])
def test_one_length_for_all_is_the_best_of_those_allowed(rate, num_rows):
    estimates, view = found_accepted_at(rate, num_rows), make_view(num_rows)

    def goodput(k):
        emitted = num_rows * (1 + estimates.survival[0, 0, :k].sum())
        return emitted / float(TARGET_ONLY.target_seconds(view, np.array([k * num_rows]))[0])

    plan = best_choice(view, estimates, plan_uniform=partial(plan_uniform, LengthTimes((1, 3)))).plan
    assert plan.goodput == pytest.approx(max(goodput(0), goodput(1), goodput(3)))
    assert len(set(plan.lengths.tolist())) == 1 and plan.lengths[0] in (0, 1, 3)


def one_length(lengths=(1, 2, 3, 4)):
    return partial(plan_uniform, LengthTimes(lengths))


def test_one_length_is_the_one_of_most_weighted_tokens_per_second():
    """Two good requests of three have long drafts, unless the third, which waits for them, counts much more."""
    survival = np.cumprod(np.repeat([[0.95], [0.95], [0.05]], K, axis=1), axis=1)
    latency = LatencyModel(CostCurve.linear(0.03, 0.0), (None, CostCurve.linear(0.008, 0.0)))
    estimates = estimates_of(latency, np.zeros((3, K)), survival)

    def lengths(weights):
        view = make_view(3, 0, weights=np.array(weights))
        return set(best_choice(view, estimates, plan_uniform=one_length()).plan.lengths.tolist())

    assert lengths([1.0, 1.0, 1.0]) == {4} and lengths([1.0, 1.0, 20.0]) == {0}


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
def test_drafts_for_the_next_step_have_the_length_of_one_without_prefill(rate):
    estimates, view = drafts_accepted_at(rate, 8), make_view(8, 0)
    ahead = replace(estimates, drafters=tuple(replace(d, kept_passes=int(d.has_passes)) for d in estimates.drafters))
    mixed = replace(view, **PREFILL)
    alone, choice = (best_choice(each, ahead, plan_uniform=one_length()) for each in (view, mixed))
    assert choice.plan.lengths.tolist() == alone.plan.lengths.tolist()
    assert choice.prices == alone.prices


def test_several_draft_models_and_a_lookup_are_mixed_row_by_row():
    """What was found is free; where nothing was, whichever model is right about the row."""
    latency = LatencyModel(CURVE, (None, CostCurve.linear(0.001, 1e-5), CostCurve.linear(0.002, 1e-5)))
    rates = np.array([[0.8, 0.1, 0.1], [0.7, 0.8, 0.05], [0.7, 0.05, 0.9]])  # by drafter and row
    estimates = Estimates((LOOKUP, MODEL, MODEL), np.cumprod(np.repeat(rates[:, :, None], K, axis=2), axis=2), latency)
    view = replace(make_view(3), drafters=(found([K, 0, 0]), lagging(3), lagging(3)))
    assert best_choice(view, estimates).draft_plan.drafter.tolist() == [0, 1, 2]
    costly = CostCurve.linear(1.0, 0.0)
    dear = replace(estimates, latency=LatencyModel(CURVE, (None, CostCurve.linear(0.001, 1e-5), costly)))
    assert best_choice(view, dear).draft_plan.drafter.tolist()[:2] == [0, 1]
    assert 2 not in best_choice(view, dear).draft_plan.drafter, "nor is it charged where it does not draft"
    both_dear = replace(estimates, latency=LatencyModel(CURVE, (None, costly, costly)))
    assert best_choice(view, both_dear).draft_plan.drafter.tolist() == [0, -1, -1]


def test_where_depth_is_free_drafts_are_longer():
    """Where each token takes a pass of its own, the third would cost more than it is worth."""
    lengths = {}
    for one_pass_depth in (0, K):
        latency = LatencyModel(CURVE, (CostCurve.linear(0.02, 0.0001),))
        spec = DrafterSpec("head", has_passes=True, one_pass_depth=one_pass_depth)
        latency.use_drafters((spec,))
        survival = np.cumprod(np.full((1, 1, K), 0.9), axis=2)
        view = replace(make_view(1), drafters=(lagging(1),))
        best = best_choice(view, Estimates((spec,), survival, latency))
        lengths[one_pass_depth] = int(best.plan.lengths[0])
    assert lengths == {0: 2, K: K}
