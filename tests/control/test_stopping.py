"""Drafts that end, or go on, by how confident the draft model is in them."""

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import factories
import numpy as np
import pytest
from drafter_cases import estimates_of, found, lagging
from hypothesis import given, settings
from hypothesis import strategies as st

from smartspec.control import CostCurve, Drafted, LatencyModel
from smartspec.control.goodput.policy import Goodput, GoodputSettings
from smartspec.control.goodput.worth import ConfidenceStop
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import simulate_static
from smartspec.sim.static_load import Phase

K = 6
# A drafter whose confidence is the probability of acceptance.
GRID = np.linspace(0.0, 1.0, 1025)
ODDS = GRID / np.maximum(1.0 - GRID, 1e-12)
CALIBRATED = SimpleNamespace(
    has_confidence=lambda drafter: True,
    odds_given_confidence=lambda drafter, history: (ODDS, np.ones(history.shape)),
)
LATENCY = LatencyModel(CostCurve.linear(0.02, 0.0001), (None, CostCurve.linear(0.002, 0.0)))


def make_view(num_rows, **changes):
    return factories.make_view(num_rows, found_lengths=0, lag=0, row_caps=K, **changes)


def make_estimates(num_rows, rate, acceptance=CALIBRATED):
    survival = np.cumprod(np.full((num_rows, K), rate), axis=1)
    return estimates_of(LATENCY, survival, survival, acceptance)


def planned(view, estimates):
    """As planned, and with the rule that ends it; a rule is good for one step."""
    return tuple(
        Goodput(settings=GoodputSettings(fairness=0.0, uses_confidence=uses)).plan(view, estimates)
        for uses in (False, True)
    )


def drafted_length(plan, confidence):
    """Tokens that a single row drafts if all its tokens have this confidence."""
    row, confidence = np.zeros(1, dtype=np.int64), [confidence] * K
    for depth in range(int(plan.lengths[0])):
        if plan.stop(depth, row, np.array(confidence[depth : depth + 1]), np.zeros(1))[0]:
            return depth + 1
    return int(plan.lengths[0])


def test_confident_drafts_go_on_and_doubtful_ones_end():
    before, plan = planned(make_view(1), make_estimates(1, 0.6))
    assert 1 < before.lengths[0] < K and plan.lengths[0] == K
    lengths = [
        drafted_length(planned(make_view(1), make_estimates(1, 0.6))[1], q)
        for q in (0.1, 0.6, 0.99)
    ]
    assert lengths == [1, before.lengths[0], K], "as planned where it is as confident as expected"


@given(
    rate=st.floats(0.2, 0.95),
    levels=st.tuples(st.floats(0.05, 0.95), st.floats(0.05, 0.95)),
    price=st.floats(0.01, 0.6),
    seen=st.lists(st.booleans(), min_size=K, max_size=K),
)
def test_no_other_rule_for_one_row_brings_more(rate, levels, price, seen):
    """Against dynamic programming over all rules; confidence is one of two levels, their mean is
    what was expected."""
    # confidence that is not rounded
    levels = np.round(np.array(levels) * rate / np.mean(levels) * 1024) / 1024
    if levels.max() > 1:
        return
    rate = np.mean(levels)
    estimates = make_estimates(1, rate)
    rule = ConfidenceStop(estimates, np.array([1]), np.ones(1), np.full(K, price), 0.0)

    def value_of_going_on(depth, survival):
        if depth == K:
            return -np.inf
        later = [max(value_of_going_on(depth + 1, survival * level), 0.0) for level in levels]
        return survival * rate - price + np.mean(later)

    survival = 1.0
    for depth, is_high in enumerate(seen):
        confidence = levels[int(is_high)]
        survival *= confidence
        value = value_of_going_on(depth + 1, survival)
        stops = rule(depth, np.zeros(1, dtype=np.int64), np.array([confidence]), np.zeros(1))[0]
        if abs(value) > 1e-6:
            assert stops == (value < 0)
        if stops:
            return


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), num_rows=st.integers(2, 6))
def test_the_rows_of_another_pass_are_the_best_set_of_rows(seed, num_rows):
    rng = np.random.default_rng(seed)
    estimates, weights = make_estimates(num_rows, 0.7), rng.uniform(0.5, 2.0, num_rows)
    token_price, pass_price, confidence = (
        rng.uniform(0, 0.6),
        rng.uniform(0, 1.0),
        rng.integers(103, 1024, num_rows) / 1024,
    )
    rule = ConfidenceStop(
        estimates, np.ones(num_rows, int), weights, np.full(K, pass_price), token_price
    )
    goes_on = np.flatnonzero(~rule(0, np.arange(num_rows), confidence, np.zeros(num_rows)))

    def surplus(rows):
        rows = list(rows)
        cost = token_price * len(rows) + pass_price
        return float((weights * confidence * 0.7)[rows].sum() - cost) if rows else 0.0

    best = max(
        surplus(rows) for n in range(num_rows + 1) for rows in combinations(range(num_rows), n)
    )
    assert surplus(goes_on) == pytest.approx(best)


@pytest.mark.parametrize("price", np.linspace(0.0, 0.5, 11))
def test_how_long_the_drafts_of_another_model_became_ends_no_draft(price):
    """It tells what was drawn in them, and a cut that weighs both would keep or drop a token for
    what it is."""
    estimates, ends = make_estimates(2, 0.6), set()
    for length_of_first in range(1, K):
        rule = ConfidenceStop(estimates, np.array([0, 1]), np.ones(2), np.full(K, 0.01), price)
        for depth in range(length_of_first):
            rule(depth, np.array([0]), np.array([0.9]), np.zeros(1))
        stops = [rule(depth, np.array([1]), np.array([0.7]), np.zeros(1))[0] for depth in range(K)]
        ends.add(stops.index(True))
    assert len(ends) == 1


def test_room_for_longer_drafts_is_what_the_step_has():
    estimates = make_estimates(3, 0.6)
    before, plan = planned(make_view(3, draft_token_budget=10), estimates)
    assert (
        before.lengths.sum() <= plan.lengths.sum() <= 10
        and plan.lengths.max() <= 1 + plan.lengths.min()
    )
    short = replace(make_view(3), row_caps=np.array([1, 4, K]))
    assert (planned(short, estimates)[1].lengths <= short.row_caps).all()


def test_model_free_drafts_and_rows_without_drafts_stay_as_planned():
    view = replace(make_view(3), drafters=(found([K, 0, 0], [K, 0, 0]), lagging(3)))
    view = replace(view, row_caps=np.array([K, K, 0]))
    before, plan = planned(view, make_estimates(3, 0.6))
    assert plan.drafter[0] == 0 and before.lengths[0] == plan.lengths[0] and plan.lengths[2] == 0
    assert plan.lengths[1] > before.lengths[1]


@pytest.mark.parametrize(
    "acceptance", [None, SimpleNamespace(has_confidence=lambda drafter: False)]
)
def test_who_knows_no_confidence_drafts_as_planned(acceptance):
    before, plan = planned(make_view(2), make_estimates(2, 0.6, acceptance))
    assert plan.stop is None and np.array_equal(plan.lengths, before.lengths)


def test_a_token_of_unknown_confidence_counts_as_expected():
    before, plan = planned(make_view(1), make_estimates(1, 0.6))
    assert drafted_length(plan, np.nan) == before.lengths[0]


@pytest.mark.parametrize("fairness", [0.0, 1.0, 2.0])
def test_alone_a_request_is_treated_alike_by_all_weights(fairness):
    """What another token is worth is settled by the plan: chance within a step does not make it
    worth less."""
    view, estimates, rows = make_view(1), make_estimates(1, 0.6), np.zeros(1, dtype=np.int64)
    drafted = Drafted(rows + K, confidence=np.full((1, K), 0.8))
    survival = np.cumprod(drafted.confidence, axis=1)
    decided = []
    for policy in (Goodput(settings=GoodputSettings(fairness=fairness)), Goodput()):
        lengths = [drafted_length(policy.plan(view, estimates), q) for q in (0.2, 0.5, 0.7, 0.9)]
        kept = policy.cut(policy.plan(view, estimates), drafted, lambda: survival)
        decided.append((lengths, kept.tolist()))
    assert decided[0] == decided[1]


@pytest.mark.parametrize("fairness", [0.0, 1.0, 2.0])
def test_it_is_the_ratio_of_weights_that_counts(fairness):
    """Where all weighed 1e-12, a fair policy made drafts as ever and verified hardly any."""
    estimates, drafted = (
        make_estimates(3, 0.6),
        Drafted(np.full(3, K), confidence=np.full((3, K), 0.8)),
    )
    survival, kept = np.cumprod(drafted.confidence, axis=1), []
    for unit in (1.0, 1e-12):
        view = make_view(3, weights=unit * np.array([1.0, 2.0, 4.0]))
        policy = Goodput(settings=GoodputSettings(fairness=fairness))
        kept.append(policy.cut(policy.plan(view, estimates), drafted, lambda: survival))
    assert kept[0].sum() and np.array_equal(*kept)


def goodput_relative_to_perfect_estimates(acceptance, draft_model, num_rows):
    phases = [Phase(num_steps=300, num_rows=num_rows)]
    rates = []
    for policy in ("goodput", "perfect-estimates"):
        scenario = Scenario(
            policy=policy, batch=num_rows, acceptance=acceptance, draft_model=draft_model
        )
        rates.append(simulate_static(scenario, phases).expected_goodput(slice(100, None)))
    return rates[0] / rates[1]


@pytest.mark.parametrize("draft_model", [None, "llama-3.2-1b"])
def test_where_tokens_differ_doubts_are_worth_more_than_the_true_mean(draft_model):
    """Perfect estimates know the acceptance of requests, not their drafter's doubts: 0.99 to 1.00
    without stopping."""
    assert goodput_relative_to_perfect_estimates("0.7/8/1", draft_model, 1) > 1.03
    assert goodput_relative_to_perfect_estimates("0.7", draft_model, 16) > 0.98, (
        "nothing to win where all are alike"
    )
