"""Trees before they are drafted: what they would bring, when they are planned, and what is learned
from them."""

from dataclasses import replace

import factories
import numpy as np
import pytest
from drafter_cases import lagging
from static_tree import best_tree

from smartspec.control import (
    Controller,
    CostCurve,
    Drafted,
    DrafterSpec,
    Estimates,
    LatencyModel,
    Plan,
)
from smartspec.control.acceptance.estimator import AcceptanceEstimator
from smartspec.control.expected_tree import expected_trees
from smartspec.control.goodput.policy import Goodput, GoodputSettings
from smartspec.control.policy import LEARN_STEPS

K = 10
HEAD = DrafterSpec("head", has_passes=True, makes_trees=True)
CHAINS = DrafterSpec("head", has_passes=True)
RANK_CHANCES = np.array([0.47, 0.31, 0.1])


def chain(rate: float) -> np.ndarray:
    return np.cumprod(np.full(K, rate))


@pytest.mark.parametrize("num_ranks", [0, 1, 3])
def test_the_expected_tree_is_the_best_static_one(num_ranks):
    rates = np.array([0.9, 0.55, 0.43])
    survival, depths = expected_trees(
        np.stack([chain(rate) for rate in rates]), RANK_CHANCES[:num_ranks]
    )
    for row, rate in enumerate(rates):
        ranks = np.minimum.accumulate([rate, *((1 - rate) * RANK_CHANCES[:num_ranks])])
        best = best_tree(np.tile(ranks, (K, 1)), K)
        np.testing.assert_allclose(survival[row], best.survival)
        assert sorted(depths[row].tolist()) == sorted(best.depths.tolist())


class Acceptance(AcceptanceEstimator):
    """One that knows that every chain's next token is right with this chance, and what other child
    ranks are worth."""

    def __init__(self, drafter: DrafterSpec, rate: float):
        super().__init__(K, (drafter,))
        self.rate = rate

    @property
    def rank_chances(self) -> dict[int, np.ndarray]:
        return {0: RANK_CHANCES}


def planned(
    num_rows: int,
    drafter: DrafterSpec = HEAD,
    rate: float = 0.5,
    token=0.0004,
    draft=(0.004, 0.0),
    confidence=False,
):
    view = factories.make_view(num_rows, drafters=(lagging(num_rows),), row_caps=K)
    latency = LatencyModel(CostCurve.linear(0.02, token), (CostCurve.linear(*draft),))
    survival = np.broadcast_to(chain(rate), (1, num_rows, K))
    rank_chances = {0: RANK_CHANCES} if drafter.makes_trees else {}
    settings = GoodputSettings(uses_confidence=confidence, share=0.0)
    acceptance = Acceptance(drafter, rate)
    acceptance.has_confidence = lambda drafter: True
    estimates = Estimates((drafter,), survival, latency, acceptance, rank_chances=rank_chances)
    policy = Goodput(settings=settings)
    for _ in range(3):
        plan = policy.plan(view, estimates)
    survival = estimates.of_width(plan.width).survival[0]
    emitted = num_rows + (survival * (np.arange(K) < plan.lengths[:, None])).sum()
    seconds = latency.target_seconds(view, plan.lengths.sum(keepdims=True))[0]
    return plan, emitted / (seconds + draft[0] * plan.passes.max(initial=0))


def test_trees_are_planned_where_passes_are_dear_and_tokens_cheap():
    plan, goodput = planned(1)
    assert plan.width > 1 and plan.passes[0] < plan.lengths[0]
    _, of_chain = planned(1, CHAINS)
    assert goodput > 1.02 * of_chain


def test_trees_shrink_to_chains_and_to_nothing_under_load():
    shapes = []
    for num_rows in (1, 4, 16, 64, 256):
        plan, _ = planned(num_rows, rate=0.6, draft=(0.001, 0.0004))
        shapes.append((int(plan.lengths.max()), plan.width))
    lengths, widths = zip(*shapes, strict=True)
    assert lengths == tuple(sorted(lengths, reverse=True)) and lengths[0] > 3 and lengths[-1] == 0
    assert widths[0] == 4 and 1 in widths


def test_chains_end_by_confidence_and_trees_are_as_planned():
    """A rule that took the next level of a tree for the next token of a chain ended trees too
    early."""
    tree, _ = planned(1, confidence=True)
    as_planned, _ = planned(1)
    assert tree.width > 1 and tree.stop is None and tree.settled.rule is None
    assert np.array_equal(tree.lengths, as_planned.lengths) and np.array_equal(
        tree.passes, as_planned.passes
    )
    chain_plan, _ = planned(1, CHAINS, confidence=True)
    assert chain_plan.stop is not None and chain_plan.width == 1 and chain_plan.depths is None


def tree_feedback(random: np.random.Generator, view, top: float, later: np.ndarray):
    """Trees of three children of the text and two of its top-1 child, and what was seen of them."""
    num_rows = view.num_rows
    parents = np.tile([-1, -1, -1, 0, 0, *range(4, K - 1)], (num_rows, 1))
    tests = np.full((num_rows, K), -1)
    for row in tests:
        row[:3] = 0
        if random.random() < top:
            row[0], row[3:5] = 1, 0
            if random.random() < top:
                row[3] = 1
            elif random.random() < later[0]:
                row[4] = 1
        elif (u := random.random()) < later[0] + later[1]:
            row[1 if u < later[0] else 2] = 1
    plan = Plan(
        np.full(num_rows, 5), np.zeros(num_rows, dtype=int), depths=np.full(num_rows, 2), width=3
    )
    accepted = np.maximum(tests, 0).sum(axis=1)
    tested = np.where(tests[:, 3] >= 0, 2, 1)
    return factories.make_outcome(
        view, plan, accepted=accepted, tested=tested, parents=parents, node_tests=tests
    )


def test_what_each_child_rank_is_worth_is_learned_from_trees():
    view = factories.make_view(8, drafters=(lagging(8),), row_caps=K)
    estimator, random = AcceptanceEstimator(K, (HEAD,)), np.random.default_rng(0)
    for _ in range(300):
        estimator.observe([tree_feedback(random, view, 0.6, np.array([0.5, 0.2]))])
    np.testing.assert_allclose(estimator.rank_chances[0][:2], [0.5, 0.2], atol=0.05)
    survival = estimator.survival(view)[0].mean(axis=0)
    np.testing.assert_allclose(
        survival[:2], [0.6, 0.36], atol=0.05
    )  # of a chain: paths by the second child do not count


def test_a_controller_prices_the_passes_that_were_made():
    """A tree that has ended early does not make passes look slower."""
    latency = LatencyModel(CostCurve.linear(0.02, 1e-4), (CostCurve.linear(0.004, 1e-4),))
    controller = Controller("goodput", K, latency, drafters=(HEAD,), strict=True)
    view = factories.make_view(1, drafters=(lagging(1),), row_caps=K)
    shape = {
        "lengths": np.array([6]),
        "drafter": np.array([0]),
        "depths": np.array([5]),
        "width": 4,
    }
    plan = replace(controller.plan(view), **shape)
    parents = np.array([[-1, -1, -1, 0, 1, 2, *range(5, K - 1)]])
    confidence = np.array([[0.4, 0.3, 0.2, 0.5, 0.5, 0.5, *[np.nan] * (K - 6)]])
    keep = controller.cut(plan, Drafted(plan.lengths, confidence, parents))
    tests = np.where(np.arange(K) < keep[:, None], 0, -1)
    outcome = factories.make_outcome(
        view, plan, verified=keep, accepted=np.zeros(1, dtype=int), drafted=plan.lengths,
        parents=parents, node_tests=tests, confidence=confidence,
    )  # fmt: skip
    of_two_passes = latency.predict(view, replace(plan, depths=np.array([2])), keep).total
    for _ in range(LEARN_STEPS):
        factories.learn(controller, outcome)
    assert controller.predicted_seconds == pytest.approx(of_two_passes)
