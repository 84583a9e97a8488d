"""Baselines whose trees have one shape: eagle2 and ddd."""

import factories
import numpy as np
import pytest
from baseline_cases import make_latency
from drafter_cases import LOOKUP, found, lagging

from smartspec.control.policy import Estimates
from smartspec.control.policy_names import parse_policy
from smartspec.control.records import DrafterSpec

HEAD = DrafterSpec("head", has_passes=True, makes_trees=True)
CHAINS = DrafterSpec("model", has_passes=True)
K = 63


def plan_of(name: str, found_lengths, drafter: DrafterSpec = HEAD, **more):
    num_rows = len(found_lengths)
    views = found(np.array(found_lengths)), lagging(num_rows)
    view = factories.make_view(num_rows, drafters=views, max_draft_tokens=K, **more)
    survival = np.broadcast_to(np.cumprod(np.full(K, 0.7)), (2, num_rows, K))
    return parse_policy(name, K).plan_draft(view, Estimates((LOOKUP, drafter), survival, make_latency()))


def test_eagle2_has_one_budget_whatever_the_load():
    for num_rows in (1, 64):
        plan = plan_of("eagle2", [0] * num_rows)
        assert set(plan.lengths.tolist()) == {60} and set(plan.passes.tolist()) == {8} and plan.width == 10
    assert plan_of("eagle2:16", [0]).lengths.tolist() == [16]


def test_what_makes_no_trees_is_asked_for_chains_and_found_drafts_are_used():
    plan = plan_of("eagle2", [0, 5], CHAINS)
    assert plan.lengths.tolist() == [8, 5] and plan.drafter.tolist() == [1, 0]
    assert plan_of("ddd", [0, 5], CHAINS).passes.tolist() == [11, 5]


def test_a_step_has_no_more_nodes_than_its_budget():
    assert plan_of("eagle2", [0, 0, 0], draft_token_budget=50).lengths.sum() <= 50


@pytest.mark.parametrize("name", ["eagle2:0", "eagle2:64", "eagle2:x"])
def test_a_tree_that_is_too_large_is_refused(name):
    with pytest.raises(ValueError, match="a whole number from 1 to 63"):
        parse_policy(name)


def test_ddd_ends_where_the_beam_becomes_unlikely():
    plan = plan_of("ddd:0.5", [0, 0])
    rows = np.arange(2)
    assert plan.passes.tolist() == [11, 11]
    assert plan.stop(0, rows, np.array([0.8, 0.8]), np.zeros(2)).tolist() == [False, False]
    assert plan.stop(1, rows, np.array([0.7, 0.6]), np.zeros(2)).tolist() == [False, True]
    assert plan.stop(2, rows[:1], np.array([0.8]), np.zeros(1)).tolist() == [True]
