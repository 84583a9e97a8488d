"""What estimates cost: goodput of plans made with them against plans made with the ground truth."""

import numpy as np
import pytest
from drafter_cases import LOOKUP
from known_world import K, World, rates

from smartspec.control import CostCurve, Plan
from smartspec.control.acceptance.estimator import AcceptanceEstimator


class Estimating:
    """A controller that has the best plan of what it estimates, and knows the times."""

    def __init__(self, world):
        self.world, self.estimator = world, AcceptanceEstimator(K, (LOOKUP,))

    def plan(self, view):
        lengths = self.world.best_lengths(self.estimator.survival(view)[0])
        return Plan(lengths, np.zeros(view.num_rows, int), view=view)

    def cut(self, plan, drafted):
        return drafted.lengths

    def learn(self, plan, outcome):
        self.estimator.observe([outcome])


def shares(world, controller, num_steps):
    """Of the best goodput, by step."""
    lengths = [world.step(controller) for _ in range(num_steps)]
    return np.array([world.goodput(each) for each in lengths]) / world.best_goodput()


def settled_share(make_world, num_steps):
    """After a third of the steps, in the mean of five worlds by seed."""
    worlds = map(make_world, range(5))
    return np.mean([shares(w, Estimating(w), num_steps)[num_steps // 3 :] for w in worlds])


@pytest.mark.parametrize("seconds_per_token", [1e-4, 3e-4])
def test_planning_with_estimates_loses_less_than_a_hundredth_when_requests_differ(
    seconds_per_token,
):
    """Batch 64, acceptance of requests spread as Beta(3, 2)."""

    def make_world(seed):
        acceptance = np.random.default_rng(100 + seed).beta(3, 2, 64)
        return World(rates(*acceptance), CostCurve.linear(0.03, seconds_per_token), seed=seed)

    assert settled_share(make_world, 150) > 0.99


STEEP = CostCurve.linear(0.03, 1e-3)


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.3), (0.3, 0.9), (0.75, 0.5)])
@pytest.mark.parametrize(("are_replaced", "num_steps"), [(True, 30), (False, 80)])
def test_a_change_of_workload_is_recovered(before, after, are_replaced, num_steps):
    """Batch 8, after long steady operation: others that are all unlike the old ones, or the same
    requests, which have themselves to be forgotten first."""
    found = []
    for seed in range(4):
        world = World(rates(*[before] * 8), STEEP, seed=seed)
        controller = Estimating(world)
        for _ in range(200):
            world.step(controller)
        if are_replaced:
            for request_id in world.ids.tolist():
                controller.estimator.forget(request_id)
            world.ids = world.ids + 8
        world.set_acceptance(rates(*[after] * 8))
        found.append(shares(world, controller, num_steps + 30)[num_steps:])
    assert np.mean(found) > 0.98


def test_steady_operation_is_not_disturbed_by_the_readiness_to_forget():
    assert settled_share(lambda seed: World(rates(*[0.8] * 8), STEEP, seed=seed), 300) > 0.985
