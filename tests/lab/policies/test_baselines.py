"""What holds for every policy there is, published or ours."""

import numpy as np
import pytest
from baseline_cases import (
    ALL_POLICIES,
    K,
    make_estimates,
    make_latency,
    make_view,
    new_policy,
    planned,
    planned_trees,
    run_step,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.policies import PARAMETERS
from lab.policies.adaserve import AdaServe, path_probabilities
from lab.policies.request_table import RequestTable
from smartspec.control.planning import plan_of_lengths
from smartspec.control.records import Drafted
from smartspec.core.policy_names import parse_policy
from smartspec.sim.perfect_estimates import PerfectEstimates

PER_REQUEST = (
    "smartspec-request",
    "hf",
    "smoothed-length",
    "gammatune",
    "dsde",
    "adaedl",
    "adaserve",
)
rows = st.lists(st.tuples(st.integers(0, K + 2), st.integers(0, K + 3)), min_size=0, max_size=12)


@pytest.mark.parametrize("name", ALL_POLICIES)
@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(rows, min_size=1, max_size=4), has_model=st.booleans(), budget=st.integers(0, 60)
)
def test_no_policy_exceeds_what_a_row_or_the_step_can_have(name, steps, has_model, budget):
    policy, rng = new_policy(name, has_model), np.random.default_rng(0)
    for limits in steps:
        caps = np.array([cap for cap, _ in limits], dtype=np.int64)
        found_lengths = np.array([length for _, length in limits], dtype=np.int64)
        targets = np.where(caps % 2, 0.01, np.inf)
        view = make_view(
            len(limits),
            found_lengths=found_lengths,
            has_model=has_model,
            row_caps=caps,
            draft_token_budget=budget,
            extras={"tpot_targets": targets},
        )
        plan, outcome = run_step(policy, view, 0.6, rng, has_model=has_model)
        assert plan.lengths.shape == plan.drafter.shape == (len(limits),)
        assert (plan.lengths >= 0).all()
        assert (plan.lengths <= np.minimum(caps, K)).all()
        assert (plan.lengths <= found_lengths)[plan.drafter != 1].all()
        assert (plan.drafter < 1 + has_model).all()
        assert ((plan.drafter >= 0) == (plan.lengths > 0)).all()
        assert ((outcome.verified >= 0) & (outcome.verified <= outcome.drafted)).all()
        if name != "fixed":  # lengths given by hand are the host's to cut
            assert outcome.verified.sum() <= budget


@pytest.mark.parametrize("name", ALL_POLICIES)
def test_steps_without_decoding_requests_are_nothing_to_decide(name):
    policy, rng = new_policy(name), np.random.default_rng(0)
    for num_rows in (0, 3, 0):
        plan, _ = run_step(policy, make_view(num_rows, prefill_tokens=7), 0.7, rng)
        assert plan.lengths.shape == (num_rows,)
    policy.end(0)
    policy.end(12345)


@pytest.mark.parametrize("name", [name for name in ALL_POLICIES if name != "off"])
def test_every_policy_uses_what_was_found_where_there_is_no_draft_model(name):
    policy = new_policy(name, has_model=False)
    view = make_view(4, found_lengths=[3, 0, 8, 1], has_model=False)
    plan = planned(policy, view, acceptance=0.9, has_model=False)
    assert (plan.lengths > 0).tolist() == [True, False, True, True]
    assert (plan.drafter <= 0).all()


@pytest.mark.parametrize("name", PER_REQUEST)
def test_what_is_known_of_requests_is_dropped_with_them(name):
    policy, rng = new_policy(name), np.random.default_rng(0)
    for first_id in range(0, 3000, 100):
        for _ in range(3):
            run_step(policy, make_view(np.arange(first_id, first_id + 100)), 0.9, rng)
        assert len(policy._requests) == 100
        for request_id in range(first_id, first_id + 100):
            policy.end(request_id)
    assert len(policy._requests) == 0


@pytest.mark.parametrize("name", PARAMETERS)
def test_numbers_after_names_are_taken_or_refused_with_their_range(name):
    _, least, largest, *_ = PARAMETERS[name]
    for value in (least, largest):
        parse_policy(f"{name}:{value}", K)
    for bad in ("", "x", "nan", str(least - 1), str(largest + 1)):
        with pytest.raises(ValueError, match=rf"from {least} to {largest}") as error:
            parse_policy(f"{name}:{bad}")
        assert repr(f"{name}:{bad}") in str(error.value)


def test_perfect_estimates_cannot_be_named():
    with pytest.raises(ValueError, match="only in the simulator"):
        parse_policy("perfect-estimates", K)


@pytest.mark.parametrize("name", ["sglang-ema:1", "off:1", "goodput:2", "synergy"])
def test_names_that_are_none_list_the_others(name):
    with pytest.raises(ValueError, match=r"batch-table\[:number\].*sglang-ema.*adaserve"):
        parse_policy(name)


def test_perfect_estimates_believe_the_ground_truth_and_not_the_estimates():
    policy = new_policy("perfect-estimates")
    told_useless = planned(policy, make_view(4), acceptance=0.0)
    told_perfect = planned(policy, make_view(4), acceptance=1.0)
    assert told_useless.lengths.tolist() == told_perfect.lengths.tolist()
    assert (told_useless.lengths > 0).all()


def test_perfect_estimates_take_any_gain():
    """Free verification at 0.5 % acceptance: less than goodput's margin, but a gain."""
    ground_truth = make_estimates(1, acceptance=0.005, latency=make_latency(0.0), has_model=False)
    policy = PerfectEstimates(lambda view: ground_truth)
    plan = policy.plan(make_view(1, found_lengths=[1], has_model=False), ground_truth)
    assert plan.lengths.tolist() == [1]


def test_a_short_budget_cuts_the_longest_drafts():
    plan = plan_of_lengths(
        make_view(4, row_caps=[1, 8, 3, 8], draft_token_budget=11), make_estimates(4), K
    )
    assert plan.lengths.tolist() == [1, 3, 3, 3]
    nothing = plan_of_lengths(make_view(4, draft_token_budget=0), make_estimates(4), K)
    assert nothing.lengths.tolist() == [0, 0, 0, 0]
    assert (nothing.drafter == -1).all()


def test_a_request_table_grows_and_starts_rows_anew():
    table = RequestTable(length=5, window=np.zeros(3))
    ids = np.arange(1000)
    table["length"][table.rows(ids[:200])] = np.arange(200)
    rows = table.rows(ids)
    assert len(set(rows.tolist())) == len(table) == 1000
    assert table["length"][rows[:200]].tolist() == list(range(200))
    assert (table["length"][rows[200:]] == 5).all()
    table["window"][rows[7]] = 1.0
    table.forget(7)
    assert table["length"][table.rows(np.array([5000]))].tolist() == [5]
    assert table["window"][table.rows(np.array([5000]))].tolist() == [[0.0, 0.0, 0.0]]


def adaserve_keep(budget, view, confidence, drafted_lengths=K):
    """Lengths of what is verified of such drafts."""
    policy, confidence = AdaServe(budget), np.repeat(np.c_[confidence], K, axis=1)
    plan = planned(policy, view)
    drafted = Drafted(np.minimum(drafted_lengths, plan.lengths), confidence)
    return policy.cut(plan, drafted, lambda: np.zeros_like(confidence)).tolist()


@pytest.mark.parametrize(
    ("extras", "kept"),
    [
        # Products 0.9 0.81 0.73 | 0.5 | 0.8 0.64 0.51: the six best are three of the first and
        # three of the last.
        ({}, [3, 0, 3]),
        ({"tpot_targets": np.full(3, 1e3)}, [3, 0, 3]),
        # The step takes about 0.025 s: 2.4 tokens are needed, 1 + 0.5 + 0.25 + 0.125 does not even
        # reach 2, and no request may take more than 1.2 x 9 / 3 = 3 tokens; the other three go to
        # the likeliest.
        ({"tpot_targets": np.array([np.inf, 0.011, np.inf])}, [2, 3, 1]),
    ],
)
def test_adaserve_verifies_the_likeliest_tokens_after_those_of_requests_that_lag(extras, kept):
    assert adaserve_keep(3 + 6, make_view(3, extras=extras), [0.9, 0.5, 0.8]) == kept


def test_adaserve_plans_with_drafts_as_long_as_planned():
    """A draft that ended early may tell what was drawn: room and time are those of the plan, and
    the token stays."""
    targets = np.array([0.0232, np.inf, np.inf, np.inf])
    view = make_view(4, row_caps=np.array([2, 1, 1, 1]), extras={"tpot_targets": targets})
    for length in (1, 2):
        kept = adaserve_keep(4 + 2, view, [0.1, 0.9, 0.9, 0.9], np.array([length, 1, 1, 1]))
        assert kept[0] == 1, (
            "it would meet its target without a draft if the step drafted one token only"
        )


def test_adaserve_makes_trees_within_the_budgets_of_both_passes():
    for num_rows, depth, width in ((1, 8, 3), (48, 5, 2), (64, 4, 1)):
        plan = planned_trees(AdaServe(240), [0] * num_rows)
        assert (plan.passes[0], plan.width, plan.lengths[0]) == (depth, width, depth * width)


def test_adaserve_values_a_node_of_a_tree_by_its_path():
    parents = np.array([[-1, -1, 0, 1]])
    drafted = Drafted(np.array([4]), np.array([[0.6, 0.3, 0.5, 0.5]]), parents)
    np.testing.assert_allclose(
        path_probabilities(drafted, np.zeros((1, 4))), [[0.6, 0.3, 0.3, 0.15]]
    )


def test_adaserve_counts_time_and_tokens_of_each_request():
    policy, rng = AdaServe(64), np.random.default_rng(0)
    view = make_view(2, extras={"tpot_targets": np.full(2, 0.021)})
    for _ in range(10):
        run_step(policy, view, np.array([1.0, 0.0]), rng)
    ahead, late = policy._tokens_needed(view, 0.02).tolist()
    assert ahead == 1.0
    assert late == pytest.approx((10 * 0.021 + 1.05 * 0.02) / 0.021 - 10)


def test_adaserve_takes_its_budget_from_the_knee_and_stops_beyond():
    """Fixed 20 ms and 0.1 ms per token: 201 tokens double the time of one."""
    policy = AdaServe()
    assert planned(policy, make_view(100)).lengths.tolist() == [3] * 100
    assert policy.token_budget == 201
    assert not planned(policy, make_view(250)).lengths.any()
    assert planned(policy, make_view(100, prefill_tokens=2000)).lengths.tolist() == [3] * 100
