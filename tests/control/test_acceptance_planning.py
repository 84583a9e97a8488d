"""What estimates cost: goodput of plans made with them against plans made with the ground truth."""

import factories
import numpy as np
import pytest
from best_lengths import StepTimes, plan_lengths
from drafter_cases import LOOKUP, found, free_test_after

from smartspec.control import Plan
from smartspec.control.acceptance.estimator import AcceptanceEstimator

K = 8


class World:
    """Rows of known acceptance (a rate a row, the same at all positions) and a target pass of
    linear cost."""

    def __init__(self, num_rows, rates, seconds_per_token, seed):
        self.rng = np.random.default_rng(seed)
        self.ids = np.arange(num_rows)
        self.target_seconds = 0.03 + seconds_per_token * (num_rows + np.arange(num_rows * K + 1))
        self.estimator = AcceptanceEstimator(K, (LOOKUP,))
        self.set_rates(rates)

    def set_rates(self, rates):
        self.conditional = np.repeat(np.asarray(rates)[:, None], K, axis=1)
        self.survival = np.cumprod(self.conditional, axis=1)

    def restart_requests(self):
        """All requests end, others take their rows."""
        for request_id in self.ids.tolist():
            self.estimator.forget(request_id)
        self.ids = self.ids + len(self.ids)

    def step(self):
        """Plan, verify and learn; returns the share of the goodput that the best plan would have
        had."""
        num_rows = len(self.ids)
        drafters = (found(np.full(num_rows, K), np.full(num_rows, 3)),)
        view = factories.make_view(self.ids, drafters=drafters)
        lengths = self._plan(self.estimator.survival(view)[0])
        chains = factories.draw_chains(self.rng, self.conditional, (num_rows, K))
        outcome = factories.make_outcome(
            view,
            Plan(lengths, np.zeros(num_rows, int)),
            accepted=np.minimum(chains, lengths),
            drafted=np.full(num_rows, K),
            free_tests=(free_test_after(lengths, chains, K),),
        )
        self.estimator.observe([outcome])
        return self._goodput(lengths) / self._goodput(self._plan(self.survival))

    def _plan(self, survival):
        num_rows = len(survival)
        free = np.zeros(num_rows, dtype=bool)
        caps, weights = np.full(num_rows, K), np.ones(num_rows)
        return plan_lengths(
            survival, caps, weights, free, StepTimes(np.zeros(1), self.target_seconds)
        ).lengths

    def _goodput(self, lengths):
        is_verified = np.arange(K) < lengths[:, None]
        return (len(lengths) + self.survival[is_verified].sum()) / self.target_seconds[
            lengths.sum()
        ]


def settled_share(make_world, num_steps):
    """After a third of the steps, in the mean of five worlds by seed."""
    worlds = map(make_world, range(5))
    return np.mean([[w.step() for _ in range(num_steps)][num_steps // 3 :] for w in worlds])


@pytest.mark.parametrize("seconds_per_token", [1e-4, 3e-4])
def test_planning_with_estimates_loses_less_than_a_hundredth_when_requests_differ(
    seconds_per_token,
):
    """Batch 64, acceptance of requests spread as Beta(3, 2)."""

    def make_world(seed):
        rates = np.random.default_rng(100 + seed).beta(3, 2, 64)
        return World(64, rates, seconds_per_token, seed)

    assert settled_share(make_world, 150) > 0.99


@pytest.mark.parametrize("rates", [(0.9, 0.3), (0.3, 0.9), (0.75, 0.5)])
@pytest.mark.parametrize(("are_replaced", "num_steps"), [(True, 30), (False, 80)])
def test_a_change_of_workload_is_recovered(rates, are_replaced, num_steps):
    """Batch 8, after long steady operation: others that are all unlike the old ones, or the same
    requests, which have themselves to be forgotten first."""
    after = []
    for seed in range(8):
        world = World(8, np.full(8, rates[0]), 1e-3, seed)
        for _ in range(200):
            world.step()
        if are_replaced:
            world.restart_requests()
        world.set_rates(np.full(8, rates[1]))
        after.append([world.step() for _ in range(num_steps + 30)])
    assert np.mean(np.array(after)[:, num_steps:]) > 0.98


def test_steady_operation_is_not_disturbed_by_the_readiness_to_forget():
    assert settled_share(lambda seed: World(8, np.full(8, 0.8), 1e-3, seed), 300) > 0.985
