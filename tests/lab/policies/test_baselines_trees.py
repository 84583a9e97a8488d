"""Baselines whose trees have one shape: eagle2, ddd and sequoia."""

import factories
import numpy as np
import pytest
from baseline_cases import HEAD, planned_trees
from drafter_cases import MODEL, lagging
from static_tree import best_tree

from smartspec.control.acceptance.estimator import AcceptanceEstimator
from smartspec.control.estimates import Estimates
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.core.policy_names import parse_policy
from smartspec.sim.world.trees import grow_trees

K = 63


def plan_of(name: str, *arguments, **more):
    return planned_trees(parse_policy(name, K), *arguments, **more)


def test_eagle2_has_one_budget_whatever_the_load():
    for num_rows in (1, 64):
        plan = plan_of("eagle2", [0] * num_rows)
        assert {*plan.lengths} == {60} and {*plan.passes} == {8} and plan.width == 10
    assert plan_of("eagle2:16", [0]).lengths.tolist() == [16]


def test_what_makes_no_trees_is_planned_for_chains_and_found_drafts_are_used():
    plan = plan_of("eagle2", [0, 5], MODEL)
    assert plan.lengths.tolist() == [8, 5] and plan.drafter.tolist() == [1, 0]
    assert plan_of("ddd", [0, 5], MODEL).passes.tolist() == [11, 5]


def test_a_step_has_no_more_nodes_than_its_budget():
    assert plan_of("eagle2", [0, 0, 0], draft_token_budget=50).lengths.sum() <= 50


@pytest.mark.parametrize("name", ["eagle2:0", "eagle2:64"])
def test_a_tree_that_is_too_large_is_refused(name):
    with pytest.raises(ValueError, match="a whole number from 1 to 63"):
        parse_policy(name)


def test_ddd_ends_where_the_beam_becomes_unlikely():
    """By the published threshold, and by one of ours."""
    plan = plan_of("ddd:0.5", [0, 0])
    assert plan.passes.tolist() == [11, 11]

    def stops(depth, *beams):
        return plan.stop(depth, np.arange(len(beams)), np.array(beams), None).tolist()

    for depth in range(4):  # the beam of the second row is unlikely from the first pass on
        assert stops(depth, 0.9, 0.2) == [False, False]
    assert stops(4, 0.9, 1.0) == [False, True]
    assert stops(5, 0.5) == [False] and stops(6, 1.0) == [True]
    plan = plan_of("ddd", [0, 0])
    assert stops(4, *np.exp([-0.29, -0.31])) == [False, True]


def sequoia_plan(name: str, num_rows: int, survival=0.7, drafter=HEAD):
    """With a head alone, and an estimator that has seen nothing yet. A token costs 2 % of a
    pass."""
    view = factories.make_view(num_rows, drafters=(lagging(num_rows),), row_caps=K)
    latency = LatencyModel(CostCurve.linear(0.02, 0.0004), (CostCurve.linear(0.001, 0.0),))
    chain = np.broadcast_to(np.cumprod(np.full(K, survival)), (1, num_rows, K))
    rank_chances = AcceptanceEstimator(K, (drafter,)).rank_chances
    estimates = Estimates((drafter,), chain, latency, rank_chances=rank_chances)
    return parse_policy(name, K).plan(view, estimates)


def test_sequoias_tree_is_the_best_static_one():
    plan = sequoia_plan("sequoia:20", 3)
    later_ranks = 0.3 * AcceptanceEstimator(K, (HEAD,)).rank_chances[0]
    chances = np.tile(np.minimum.accumulate([0.7, *later_ranks]), (K, 1))
    best = best_tree(chances, 20)
    np.testing.assert_allclose(plan.extras["chances"], chances)
    assert plan.lengths.tolist() == [20] * 3 and plan.passes.tolist() == [best.depths.max()] * 3
    (draft,), _ = grow_trees(chances[None], plan.lengths[:1], plan.passes[:1])
    assert draft.confidence.tolist() == chances[draft.depths - 1, draft.token_ids].tolist()
    assert sorted(draft.depths.tolist()) == sorted(best.depths.tolist())


def test_sequoias_size_is_that_of_most_tokens_per_second():
    sizes = [int(sequoia_plan("sequoia", num_rows).lengths[0]) for num_rows in (1, 8, 64)]
    assert sizes[0] > sizes[1] > sizes[2]
    assert not sequoia_plan("sequoia", 64, survival=0.01).lengths.any()
    for num_rows, size in zip((1, 8), sizes, strict=False):
        speeds = []
        for nodes in (size - 1, size, size + 1):
            chances = sequoia_plan(f"sequoia:{nodes}", num_rows).extras["chances"]
            tree = best_tree(chances, nodes)
            seconds = 0.02 + 0.0004 * num_rows * (1 + nodes) + 0.001 * tree.depths.max()
            speeds.append(tree.tokens_per_step / seconds)
        assert speeds[1] == max(speeds)


def test_sequoia_has_drafters_without_trees_draft_as_many_tokens():
    plan = sequoia_plan("sequoia:6", 2, drafter=MODEL)
    assert plan.lengths.tolist() == [6, 6] and plan.width == 1 and not plan.extras
    assert plan_of("sequoia:4", [0, 9]).lengths.tolist() == [4, 4]
