"""The goodput policy by what it plans: the best lengths, the price of time, draft prefill, several
drafters."""

from dataclasses import replace

import factories
import numpy as np
import pytest
from best_lengths import StepTimes, plan_lengths
from drafter_cases import LOOKUP, MODEL, estimates_of, found, lagging
from hypothesis import given, settings
from hypothesis import strategies as st

from smartspec.control import CostCurve, DrafterSpec, Estimates, LatencyModel
from smartspec.control.goodput.policy import Goodput, GoodputSettings
from smartspec.control.planning import within_budget
from smartspec.control.records import with_fields
from smartspec.control.uniform import Uniform

K = 4
CURVE = CostCurve(knots=(1.0, 16.0), slopes=(0.0002, 0.002), constant=0.03)
TARGET_ONLY = LatencyModel(CURVE)
WITH_DRAFT = LatencyModel(CURVE, (None, CostCurve.linear(0.002, 0.0002)))
PREFILL = {
    "num_prefills": 1,
    "prefill_tokens": 400,
    "prefill_context_tokens": 400,
    "prefill_attended_tokens": 80_000.0,
}
PLAIN = GoodputSettings(fairness=0.0, uses_confidence=False, share=0.0)


def make_view(num_rows, found_length=K, lag=0, **changes):
    return factories.make_view(num_rows, found_lengths=found_length, lag=lag, row_caps=K, **changes)


def chains(rate, num_rows):
    return np.cumprod(np.broadcast_to(rate, (num_rows, K)), axis=1)


def found_accepted_at(rate, num_rows, latency=TARGET_ONLY):
    return estimates_of(latency, chains(rate, num_rows))


def drafts_accepted_at(rate, num_rows, latency=WITH_DRAFT):
    return estimates_of(latency, chains(rate, num_rows), chains(rate, num_rows))


def plan_of(view, estimates, policy=None):
    """Return the plan once prices have settled."""
    policy = policy or Goodput(settings=PLAIN)
    for _ in range(3):
        plan = policy.plan(view, estimates)
    return plan


def goodput_of(lengths, survival, weights, passes_seconds, latency, view):
    emitted = weights @ (1.0 + (survival * (np.arange(K) < lengths[:, None])).sum(axis=1))
    seconds = (
        passes_seconds[lengths.max(initial=0)]
        + latency.target_seconds(view, np.array([lengths.sum()]))[0]
    )
    return emitted / seconds


def problem(survival, weights, curve, passing):
    """View and estimates of rows that draft with a model whose pass takes so long, or without one
    (None); and the seconds of 0..K of its passes."""
    num, has_passes = len(weights), passing is not None
    latency = LatencyModel(curve, (CostCurve.linear(passing, 0.0),) if has_passes else ())
    estimates = estimates_of(latency, **{"model" if has_passes else "lookup": survival})
    drafter = lagging(num) if has_passes else found([K] * num)
    view = factories.make_view(num, drafters=(drafter,), row_caps=K, weights=weights)
    return view, estimates, (passing or 0.0) * np.arange(K + 1)


@settings(max_examples=60, deadline=None)
@given(
    rates=st.lists(st.floats(0.05, 0.97), min_size=1, max_size=12),
    weights=st.lists(st.floats(0.2, 5.0), min_size=12, max_size=12),
    token=st.floats(1e-5, 5e-3),
    passing=st.none() | st.floats(0.0, 8e-3),
)
def test_the_plan_is_the_best_of_all_lengths(rates, weights, token, passing):
    """Against the exact planner of tests/best_lengths.py, where a token takes the same time
    anywhere."""
    num = len(rates)
    survival, weights = chains(np.array(rates)[:, None], num), np.array(weights[:num])
    curve = CostCurve.linear(0.02, token)
    view, estimates, passes = problem(survival, weights, curve, passing)
    target = estimates.latency.target_seconds(view, np.arange(num * K + 1))
    caps, needs = np.full(num, K), np.full(num, passing is not None)
    best = plan_lengths(survival, caps, weights, needs, StepTimes(passes, target))
    planned = plan_of(view, estimates).lengths
    made = goodput_of(planned, survival, weights, passes, estimates.latency, view)
    assert made >= 0.998 * best.goodput


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), budget=st.integers(0, 40))
def test_a_budget_keeps_the_tokens_of_most_worth(seed, budget):
    rng = np.random.default_rng(seed)
    worth = np.cumprod(rng.uniform(0.1, 1.0, (8, K)), axis=1)
    kept = within_budget(worth > 0.2, worth, budget)
    assert kept.sum() == min(budget, (worth > 0.2).sum())
    assert (np.diff(kept.astype(int), axis=1) <= 0).all(), "a prefix of each draft"
    assert worth[kept].min(initial=9.0) >= worth[(worth > 0.2) & ~kept].max(initial=0.0)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_prefill_does_not_make_drafts_worth_more(rate):
    """Per second of a long step a draft token looks like a bargain; what it saves is the same as
    ever."""
    estimates, view = found_accepted_at(rate, 16), make_view(16)
    alone, mixed = plan_of(view, estimates), plan_of(replace(view, **PREFILL), estimates)
    assert mixed.lengths.sum() <= alone.lengths.sum()


def test_time_is_worth_more_while_many_wait_for_it():
    """Few decode yet, but every second of theirs delays a large batch, which makes more tokens of
    it."""
    estimates, view = found_accepted_at(0.6, 2), make_view(2, **PREFILL)
    few, many = Goodput(settings=PLAIN), Goodput(settings=PLAIN)
    few_drafts = plan_of(view, estimates, few).lengths.sum()
    assert plan_of(replace(view, num_waiting=30), estimates, many).lengths.sum() < few_drafts
    assert many.state()["price"] > 1.3 * few.state()["price"]


def test_draft_prefill_is_bought_although_no_single_step_pays_for_it():
    view = make_view(8, found_length=0, lag=200)
    assert plan_of(view, drafts_accepted_at(0.8, 8)).lengths.any()
    one_step_seconds = float(WITH_DRAFT.draft_seconds(view, np.ones(8, int), 1)[1, -1])
    assert one_step_seconds > 0.1, "or the case would show nothing"


def test_who_has_much_to_prefill_or_is_hardly_accepted_does_not_begin():
    view = make_view(4, found_length=0, lag=np.array([0, 100, 60_000, 100]))
    rates = np.array([[0.8], [0.8], [0.8], [0.02]])
    assert plan_of(view, drafts_accepted_at(rates, 4)).lengths.astype(bool).tolist() == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(("answer", "begins"), [(4, False), (2000, True)])
def test_what_short_answers_do_not_pay_long_ones_do(answer, begins):
    """Requests that end after so many tokens teach how long the others still live."""
    policy, estimates = Goodput(settings=PLAIN), drafts_accepted_at(0.7, 4)
    for number in range(60):
        ids = np.arange(4) + 4 * number
        view = factories.make_view(ids, found_lengths=0, lag=0, row_caps=K)
        for _ in range(answer // 40 + 1):
            emitted = factories.make_outcome(view, accepted=np.full(4, min(answer, 40) - 1))
            policy.learn(emitted.plan, emitted)
        for request_id in ids.tolist():
            policy.end(request_id)
    assert plan_of(make_view(4, found_length=0, lag=600), estimates, policy).lengths.any() == begins


@pytest.mark.parametrize("policy", ["goodput", "uniform"])
def test_a_budget_of_draft_tokens_is_kept(policy):
    """With one length for all, each row counts with the whole of it: the host pads what is
    shorter."""
    made = Goodput(settings=PLAIN) if policy == "goodput" else Uniform((1, 2))
    plan = plan_of(make_view(8, draft_token_budget=5), found_accepted_at(0.9, 8), made)
    assert plan.lengths.sum() == (5 if policy == "goodput" else 0)


def test_a_plan_that_is_repeated_keeps_within_what_rows_may_carry_now():
    policy, survival = Goodput(settings=PLAIN), chains(0.9, 4)
    latency = LatencyModel(CURVE, (CostCurve.linear(0.001, 0.0),))
    estimates = with_fields(estimates_of(latency, model=survival), num_learned=1)
    view = factories.make_view(4, lag=0, row_caps=K)
    assert (plan_of(view, estimates, policy).lengths > 1).all()
    shorter = factories.make_view(4, lag=0, row_caps=np.array([K, 1, 0, K]))
    assert policy.plan(shorter, estimates).lengths.tolist()[1:3] == [1, 0]
    assert policy.plan(replace(view, draft_token_budget=3), estimates).lengths.sum() <= 3


def test_several_draft_models_and_a_lookup_are_mixed_row_by_row():
    """What was found is free; where nothing was, whichever model is right about the row."""
    latency = LatencyModel(
        CURVE, (None, CostCurve.linear(0.001, 1e-5), CostCurve.linear(0.002, 1e-5))
    )
    rates = np.array([[0.8, 0.1, 0.1], [0.7, 0.8, 0.05], [0.7, 0.05, 0.9]])  # by drafter and row
    estimates = Estimates(
        (LOOKUP, MODEL, MODEL), np.cumprod(np.repeat(rates[:, :, None], K, axis=2), axis=2), latency
    )
    view = replace(make_view(3), drafters=(found([K, 0, 0]), lagging(3), lagging(3)))
    assert plan_of(view, estimates).drafter.tolist() == [0, 1, 2]
    costly = CostCurve.linear(1.0, 0.0)
    dear = with_fields(
        estimates, latency=LatencyModel(CURVE, (None, CostCurve.linear(0.001, 1e-5), costly))
    )
    assert plan_of(view, dear).drafter.tolist()[:2] == [0, 1]
    assert 2 not in plan_of(view, dear).drafter, "nor is it charged where it does not draft"
    both_dear = with_fields(estimates, latency=LatencyModel(CURVE, (None, costly, costly)))
    assert plan_of(view, both_dear).drafter.tolist() == [0, -1, -1]


@pytest.mark.parametrize("policy", ["goodput", "uniform"])
def test_where_depth_is_free_drafts_are_longer(policy):
    """A drafter that makes a whole block in one pass: each depth takes the same. Where each token
    takes a pass of its own, the third would cost more than it is worth."""
    lengths = {}
    for one_pass_depth in (0, K):
        latency = LatencyModel(CURVE, (CostCurve.linear(0.02, 0.0001),))
        spec = DrafterSpec("head", has_passes=True, one_pass_depth=one_pass_depth)
        latency.use_drafters((spec,))
        view = replace(make_view(1), drafters=(lagging(1),))
        made = Goodput(settings=PLAIN) if policy == "goodput" else Uniform(tuple(range(1, K + 1)))
        plan = plan_of(view, Estimates((spec,), chains(0.9, 1)[None], latency), made)
        lengths[one_pass_depth] = int(plan.lengths[0])
    assert lengths == {0: 2, K: K}


@pytest.mark.parametrize("passing", [None, 0.008])
@pytest.mark.parametrize("seed", range(8))
def test_one_length_for_all_is_the_best_of_those_allowed(seed, passing):
    """Weighted tokens count: a request that drafts badly and waits for the others may count much
    more than they do."""
    rng = np.random.default_rng(seed)
    num = 4 ** (seed % 4)
    survival, weights = chains(rng.uniform(0.05, 0.97, (num, 1)), num), rng.uniform(0.2, 20.0, num)
    view, estimates, passes = problem(survival, weights, CURVE, passing)

    def goodput(k):
        return goodput_of(np.full(num, k), survival, weights, passes, estimates.latency, view)

    lengths = plan_of(view, estimates, Uniform((1, 3))).lengths
    assert len({*lengths.tolist()}) == 1
    assert goodput(lengths[0]) == pytest.approx(max(goodput(0), goodput(1), goodput(3)))


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
def test_drafts_for_the_next_step_have_the_length_of_one_without_prefill(rate):
    latency = LatencyModel(CURVE, (CostCurve.linear(0.002, 0.0002),))
    spec = DrafterSpec("head", has_passes=True, kept_passes=1)
    latency.use_drafters((spec,))
    estimates = Estimates((spec,), chains(rate, 8)[None], latency)
    view = replace(make_view(8), drafters=(lagging(8),))
    alone, mixed = (
        plan_of(each, estimates, Uniform((1, 2, 3))) for each in (view, replace(view, **PREFILL))
    )
    assert alone.lengths.tolist() == mixed.lengths.tolist()
