"""Baselines whose trees have one shape: eagle2, ddd and sequoia."""

import factories
import numpy as np
import pytest
from baseline_cases import make_latency
from drafter_cases import LOOKUP, found, lagging
from static_tree import best_tree

from smartspec.control.acceptance.estimator import AcceptanceEstimator
from smartspec.control.estimates import Estimates
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import DrafterSpec
from smartspec.core.policy_names import parse_policy
from smartspec.sim.world.trees import grow_trees

HEAD = DrafterSpec("head", has_passes=True, makes_trees=True)
CHAINS = DrafterSpec("model", has_passes=True)
K = 63


def plan_of(name: str, found_lengths, drafter: DrafterSpec = HEAD, **more):
    num_rows = len(found_lengths)
    views = found(np.array(found_lengths)), lagging(num_rows)
    view = factories.make_view(num_rows, drafters=views, row_caps=K, **more)
    survival = np.broadcast_to(np.cumprod(np.full(K, 0.7)), (2, num_rows, K))
    return parse_policy(name, K).plan(view, Estimates((LOOKUP, drafter), survival, make_latency()))


def test_eagle2_has_one_budget_whatever_the_load():
    for num_rows in (1, 64):
        plan = plan_of("eagle2", [0] * num_rows)
        assert (
            set(plan.lengths.tolist()) == {60}
            and set(plan.passes.tolist()) == {8}
            and plan.width == 10
        )
    assert plan_of("eagle2:16", [0]).lengths.tolist() == [16]


def test_what_makes_no_trees_is_planned_for_chains_and_found_drafts_are_used():
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
    for depth in range(4):  # the beam of the second row is unlikely from the first pass on
        assert plan.stop(depth, rows, np.array([0.9, 0.2]), np.zeros(2)).tolist() == [False, False]
    assert plan.stop(4, rows, np.array([0.9, 1.0]), np.zeros(2)).tolist() == [False, True]
    assert plan.stop(5, rows[:1], np.array([0.5]), np.zeros(1)).tolist() == [False]
    assert plan.stop(6, rows[:1], np.array([1.0]), np.zeros(1)).tolist() == [True]


def test_ddd_has_the_published_threshold():
    stop = plan_of("ddd", [0, 0]).stop
    assert stop(4, np.arange(2), np.exp([-0.29, -0.31]), np.zeros(2)).tolist() == [False, True]


def sequoia_plan(name: str, num_rows: int, survival=0.7, drafter: DrafterSpec = HEAD):
    """With a head alone, and an estimator that has seen nothing yet. A token costs 2 % of a
    pass."""
    view = factories.make_view(num_rows, drafters=(lagging(num_rows),), row_caps=K)
    latency = LatencyModel(CostCurve.linear(0.02, 0.0004), (CostCurve.linear(0.001, 0.0),))
    chain = np.broadcast_to(np.cumprod(np.full(K, survival)), (1, num_rows, K))
    rank_chances = AcceptanceEstimator(K, (drafter,)).rank_chances
    estimates = Estimates((drafter,), chain, latency, rank_chances=rank_chances)
    return parse_policy(name, K).plan(view, estimates), estimates


def test_sequoias_tree_is_the_best_static_one():
    plan, estimates = sequoia_plan("sequoia:20", 3)
    rank_chances = estimates.rank_chances[0]
    ranks = np.minimum.accumulate([0.7, *(0.3 * rank_chances)])
    best = best_tree(np.tile(ranks, (K, 1)), 20)
    np.testing.assert_allclose(plan.extras["chances"], np.tile(ranks, (K, 1)))
    assert plan.lengths.tolist() == [20] * 3 and plan.passes.tolist() == [best.depths.max()] * 3
    (draft,) = grow_trees(plan.extras["chances"][None], plan.lengths[:1], plan.passes[:1]).drafts
    assert draft.confidence.tolist() == [
        plan.extras["chances"][d - 1, r] for d, r in zip(draft.depths, draft.token_ids, strict=True)
    ]
    assert sorted(draft.depths.tolist()) == sorted(best.depths.tolist())


def test_sequoias_size_is_that_of_most_tokens_per_second():
    sizes = [int(sequoia_plan("sequoia", num_rows)[0].lengths[0]) for num_rows in (1, 8, 64)]
    assert sizes[0] > sizes[1] > sizes[2]
    assert not sequoia_plan("sequoia", 64, survival=0.01)[0].lengths.any()
    for num_rows, size in zip((1, 8), sizes[:2], strict=True):
        speeds = []
        for nodes in (size - 1, size, size + 1):
            plan, estimates = sequoia_plan(f"sequoia:{nodes}", num_rows)
            tree = best_tree(plan.extras["chances"], nodes)
            view = factories.make_view(num_rows, drafters=(lagging(num_rows),), row_caps=K)
            draft = estimates.latency.draft_seconds(view, plan.drafter, K, plan.width)[
                0, int(tree.depths.max())
            ]
            seconds = (
                estimates.latency.target_seconds(view, np.array([num_rows * nodes]))[0] + draft
            )
            speeds.append(
                num_rows * tree.tokens_per_step / (seconds + estimates.latency.host_seconds)
            )
        assert speeds[1] == max(speeds)


def test_sequoia_has_drafters_without_trees_draft_as_many_tokens():
    plan, _ = sequoia_plan("sequoia:6", 2, drafter=CHAINS)
    assert plan.lengths.tolist() == [6, 6] and plan.width == 1 and not plan.extras
    assert plan_of("sequoia:4", [0, 9]).lengths.tolist() == [4, 4]
