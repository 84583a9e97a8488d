"""The whole controller in a world whose ground truth is known."""

from dataclasses import replace

import numpy as np
import pytest
from drafter_cases import LOOKUP, MODEL, found
from known_world import K, World, rates

from smartspec.control import Controller, CostCurve, LatencyModel
from smartspec.control.goodput.policy import Goodput, GoodputSettings


def run(world, num_steps=400, measure_from=200):
    """Lengths chosen in the last steps, by a controller that knows the machine."""
    latency = LatencyModel(world.target, () if world.draft is None else (world.draft,))
    # the best is counted in tokens of whichever request
    policy = Goodput(settings=GoodputSettings(fairness=0.0))
    controller = Controller(
        policy, K, latency, drafters=(LOOKUP if world.draft is None else MODEL,)
    )
    lengths = [world.step(controller) for _ in range(num_steps)][measure_from:]
    assert controller.num_ignored.total() == 0
    return lengths


def true_goodput(world, lengths):
    return float(np.mean([world.goodput(step) for step in lengths]))


def share_of_best(make_world, num_seeds=3):
    """Goodput after 200 steps as a share of the best possible: the worst of some seeds."""
    worlds = [make_world(seed) for seed in range(num_seeds)]
    return min(
        true_goodput(world, run(world, num_steps=300)) / world.best_goodput() for world in worlds
    )


MEMORY_BOUND = CostCurve(knots=(1.0, 8.0), slopes=(0.0005, 0.002), constant=0.036)
MIXED = (0.9, 0.8, 0.6, 0.4, 0.2, 0.1, 0.7, 0.5)


@pytest.mark.parametrize(
    "rows", [rates(0.8), rates(0.3), rates(*MIXED), rates(*MIXED, *MIXED, *MIXED, *MIXED)]
)
def test_lengths_converge_to_the_best_for_model_free_drafts(rows):
    assert share_of_best(lambda seed: World(rows, MEMORY_BOUND, seed=seed)) >= 0.97


@pytest.mark.parametrize("rows", [rates(0.8), rates(0.9, 0.7, 0.5, 0.8)])
def test_lengths_converge_to_the_best_for_a_draft_model(rows):
    draft = CostCurve.linear(0.004, 0.0001)
    assert share_of_best(lambda seed: World(rows, MEMORY_BOUND, draft, seed=seed)) >= 0.97


def test_deep_drafts_are_found_where_later_tokens_are_surer():
    """A copied passage: the first token is a gamble, the rest is not."""
    conditional = np.tile([0.4] + [0.97] * (K - 1), (4, 1))
    # A few first tokens rejected by chance make whole drafts look worthless, and effects of
    # requests forget fast enough to follow a change of text: one seed may lose more by that than
    # the mean of several.
    shares = [
        share_of_best(lambda seed, n=n: World(conditional, MEMORY_BOUND, seed=n), 1)
        for n in range(8)
    ]
    assert np.mean(shares) >= 0.97 and min(shares) >= 0.92


@pytest.mark.parametrize("factor", [5.0, 10.0, 30.0])
def test_a_wrong_profile_does_not_turn_drafts_off(factor):
    """A first non-speculative step corrected the model at once, but the guard went on believing
    that such steps take a fifth of what is predicted, and stopped drafts that gain."""
    world = World(rates(0.8, 0.8, 0.8, 0.8), MEMORY_BOUND)
    slow = CostCurve(
        MEMORY_BOUND.knots,
        tuple(factor * s for s in MEMORY_BOUND.slopes),
        factor * MEMORY_BOUND.constant,
    )
    controller = Controller("goodput", K, LatencyModel(slow), drafters=(LOOKUP,), strict=True)
    view, nothing = world.view, np.zeros(world.num_rows, dtype=int)
    nothing[0] = 1  # or there would be nothing to decide
    world.view = lambda: replace(
        view(), drafters=(found(nothing),), row_caps=np.zeros_like(nothing)
    )
    world.step(controller)
    world.view = view
    for _ in range(100):
        world.step(controller)
    assert controller.policy.state()["pauses"] == 0


def test_never_slower_than_plain_decoding_by_more_than_two_percent_even_while_learning():
    """32 rows on a compute-bound machine: drafts at 30 % lose, and the first steps may not pay much
    to find out."""
    world = World(rates(*[0.3] * 32), CostCurve.linear(0.03, 0.003))
    off = world.goodput(np.zeros(32, dtype=int))
    assert true_goodput(world, run(world, num_steps=100, measure_from=0)) >= 0.98 * off


@pytest.mark.parametrize("draft", [None, CostCurve.linear(0.004, 0.0001)])
def test_weights_that_are_all_alike_change_nothing(draft):
    """Least of all may the guard take tokens that are worth four each for plain decoding being four
    times as fast."""
    ordinary, heavy = (
        run(World(rates(*MIXED), MEMORY_BOUND, draft, weight=w), measure_from=0) for w in (1.0, 4.0)
    )
    assert np.array_equal(ordinary, heavy)
    assert np.sum(ordinary) > 0
