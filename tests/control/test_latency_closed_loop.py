"""The cost model as the planner lives with it: it starts wrong, sees only what the planner chooses,
and must end up choosing what one who knows the ground truth would choose."""

from dataclasses import replace
from functools import partial

import factories
import numpy as np
import pytest
from best_lengths import StepTimes, plan_lengths
from factories import make_view

from smartspec.control import CostCurve, LatencyModel, Plan, StepSeconds
from smartspec.sim.world.hardware import roofline
from smartspec.sim.world.step_time import GroundTruthTime

K = 8
HOST_SECONDS = 0.001
NOISE = 0.03
OUTLIERS = 0.01  # of the measurements take five times as long
BATCHES = (1, 8, 64, 256)
CPU = CostCurve((1.0, 8.0), (0.0005, 0.002), 0.036, per_context_token=1e-6, per_attended_token=1e-7)


# no piecewise linear curve fits its soft edges exactly
ACCELERATOR = roofline("h100", "llama-3.1-8b")


def profile(ground_truth, distortion=1.0):
    return GroundTruthTime(ground_truth, jitter=0.02).profile(distortion).target


def token_slopes_scaled(curve, factor):
    slopes = tuple(factor * slope for slope in curve.slopes)
    return replace(curve, slopes=slopes, per_scored_token=factor * curve.per_scored_token)


WRONG = {
    "right": profile,
    "half": partial(profile, distortion=0.5),
    "double": partial(profile, distortion=2.0),
    "context is free": partial(profile, distortion="no-context"),
    "slope understated by 45 %": lambda truth: token_slopes_scaled(profile(truth), 0.55),
}


class Loop:
    """Requests come and go, each with its own acceptance and context; drafts exist already (prompt
    lookup)."""

    def __init__(self, ground_truth, start, num_rows, seed=0):
        self.ground_truth, self.model, self.num_rows = ground_truth, LatencyModel(start), num_rows
        self.rng = np.random.default_rng(seed)
        self.acceptance = self.rng.beta(4, 2, num_rows)
        self.context = self.rng.integers(250, 2000, num_rows)
        self.speed = 1.0

    def view(self):
        return make_view(self.num_rows, found_lengths=K, context_tokens=self.context)

    def true_seconds(self, num_draft_tokens):
        fed = self.num_rows + num_draft_tokens
        context = float(self.context.sum())
        attended = fed * (context / self.num_rows + 1)
        return self.ground_truth.seconds(fed, context + fed, self.num_rows, attended) / self.speed

    def step(self):
        """Plan, measure and learn; returns the true goodput of the plan as a share of the best
        possible."""
        view, counts = self.view(), np.arange(self.num_rows * K + 1)
        log_odds = np.log(self.acceptance / (1 - self.acceptance))[:, None]
        noise = 0.5 * self.rng.standard_normal((self.num_rows, K))
        survival = np.cumprod(1 / (1 + np.exp(-log_odds - noise)), axis=1)
        true_seconds = self.true_seconds(counts)
        best = self.plan(survival, true_seconds)
        lengths = self.plan(survival, self.model.target_seconds(view, counts)).lengths
        self.num_draft_tokens = int(lengths.sum())
        measured = StepSeconds(
            0.0, self.noisy(true_seconds[self.num_draft_tokens]), self.noisy(HOST_SECONDS)
        )
        plan = Plan(lengths, np.zeros(self.num_rows, dtype=int))
        self.model.observe([factories.make_outcome(view, plan, seconds=measured)])
        self.go_on(lengths)
        emitted = self.num_rows + survival[np.arange(K) < lengths[:, None]].sum()
        return emitted / (true_seconds[self.num_draft_tokens] + HOST_SECONDS) / best.goodput

    def plan(self, survival, target_seconds):
        full = np.full(self.num_rows, K)
        return plan_lengths(
            survival,
            full,
            full / K,
            full == 0,
            StepTimes(np.zeros(1), target_seconds, HOST_SECONDS),
        )

    def noisy(self, seconds):
        return float(
            seconds
            * np.exp(NOISE * self.rng.standard_normal())
            * (5 if self.rng.random() < OUTLIERS else 1)
        )

    def go_on(self, lengths):
        ends = self.rng.random(self.num_rows) < 1 / 60
        self.acceptance = np.where(ends, self.rng.beta(4, 2, self.num_rows), self.acceptance)
        self.context = np.where(ends, 250, self.context + 1 + lengths // 2)

    def run(self, num_steps):
        return np.array([self.step() for _ in range(num_steps)])


@pytest.mark.parametrize("ground_truth", [ACCELERATOR, CPU], ids=["accelerator", "cpu"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_profile_costs_at_most_three_percent_after_a_hundred_steps(ground_truth, wrong):
    shares = {
        rows: Loop(ground_truth, WRONG[wrong](ground_truth), rows).run(130) for rows in BATCHES
    }
    assert min(share[100:].mean() for share in shares.values()) >= 0.97, shares


@pytest.mark.parametrize("num_rows", BATCHES)
def test_a_throttled_clock_is_believed_within_twenty_steps(num_rows):
    loop = Loop(CPU, profile(CPU), num_rows)
    loop.run(60)
    loop.speed = 0.7
    shares = loop.run(50)
    assert shares[20:].mean() >= 0.97
    plain = loop.model.target_seconds(loop.view(), np.zeros(1))[0]
    assert plain == pytest.approx(loop.true_seconds(0), rel=0.1)
    predicted = loop.model.target_seconds(loop.view(), np.array([loop.num_draft_tokens]))[0]
    assert predicted == pytest.approx(loop.true_seconds(loop.num_draft_tokens), rel=0.04)
