"""Baselines that try lengths out: banditspec and nightjar."""

import math

import factories
import numpy as np
import pytest
from baseline_cases import K, make_estimates, make_view, planned
from factories import learn, make_outcome

from lab.policies.banditspec import BanditSpec
from lab.policies.nightjar import Arms, Nightjar, switch_seconds
from smartspec.control.records import Plan, StepSeconds


def play(policy, num_steps, seconds_of, num_rows=4, **more):
    """Lengths planned in so many steps, each of which takes seconds_of(length) and accepts half of
    what was drafted."""
    view, estimates, lengths = make_view(num_rows, **more), make_estimates(num_rows), []
    for _ in range(num_steps):
        plan = policy.plan(view, estimates)
        length = int(plan.lengths.max(initial=0))
        seconds = StepSeconds(0.0, seconds_of(length), 0.0)
        learn(policy, make_outcome(view, plan, plan.lengths, plan.lengths // 2, seconds=seconds))
        lengths.append(length)
    return lengths


def test_banditspec_tries_each_length_twice_and_then_prefers_the_fastest():
    lengths = play(BanditSpec(), 400, lambda length: 1.0 if length == 2 else 3.0)
    assert sorted(lengths[:8]) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert np.mean(np.array(lengths[100:]) == 2) > 0.6


def test_banditspec_never_gives_a_length_up_and_is_never_off():
    lengths = play(BanditSpec(3), 3000, lambda length: 1.0 if length == 2 else 3.0)
    assert min(lengths) == 1
    assert set(lengths[1000:]) == {1, 2, 3}


@pytest.mark.parametrize("policy", [BanditSpec, Nightjar])
def test_steps_with_prefill_teach_a_bandit_nothing(policy):
    bandit = policy()
    play(bandit, 20, lambda length: 1.0, prefill_tokens=100)
    counts = (
        bandit._counts
        if policy is BanditSpec
        else sum(arms.counts for arms in bandit._arms.values())
    )
    assert counts.sum() == 0


def test_nightjar_settles_on_the_fastest_length_off_included():
    for best in (0, 3):
        lengths = play(Nightjar(), 4000, lambda length, best=best: 1.0 if length == best else 8.0)
        assert np.mean(np.array(lengths[2000:]) == best) > 0.5


def test_nightjar_keeps_a_length_for_a_bin_whose_steps_grow_as_the_root_of_the_block():
    random, arms, bins = np.random.default_rng(0), Arms(np.ones(3), np.ones(3)), []
    for _ in range(24):
        arms.begin_bin(random)
        bins.append((arms.block, arms.bin, arms.steps_left))
    assert bins[:6] == [(1, 1, 1), (2, 1, 1), (2, 2, 1), (3, 1, 2), (3, 2, 2), (4, 1, 2)]
    assert all(steps == max(1, math.isqrt(2 ** (block - 1))) for block, _, steps in bins)


def test_nightjar_explores_less_in_later_bins():
    explored = np.zeros((2, 40))
    for seed in range(200):
        random, arms = np.random.default_rng(seed), Arms(np.ones(3), np.ones(3), block=12, bin=0)
        for _ in range(40):
            arms.begin_bin(random)
            explored[:, arms.bin - 1] += arms.explores, 1
    share = explored[0] / explored[1]
    assert share[0] == 1.0
    assert share[20:].mean() < 0.3


def test_nightjar_has_arms_of_its_own_for_every_class_of_batch_sizes():
    policy = Nightjar()
    for num_rows in (3, 4, 5):
        play(policy, 1, lambda length: 1.0, num_rows)
    assert [int(arms.counts.sum()) for arms in policy._arms.values()] == [2, 1]


def test_nightjar_learns_nothing_of_a_step_in_which_other_requests_ran():
    policy, view = Nightjar(), make_view(8)
    planned(policy, view)
    plan = Plan(np.zeros(1, dtype=int), np.zeros(1, dtype=int), settled=2)
    policy.learn(plan, make_outcome(make_view(1), plan, [0], [0]))
    assert not sum(arms.counts.sum() for arms in policy._arms.values())


def test_nightjar_charges_turning_speculation_on_less_the_longer_the_draft():
    arms = Arms(np.ones(4), np.array([1.0, 0.98, 0.95, 0.9]))
    assert arms.best(0.0) == 3
    assert arms.best(0.2) == 3
    assert arms.best(0.4) == 0


def test_the_price_of_the_switch_is_the_prefill_that_the_draft_model_lacks():
    view, estimates = make_view(2), make_estimates(2)
    assert switch_seconds(view, estimates) == 0.0
    lagging = factories.make_view(2, lag=500, found_lengths=0, context_tokens=512)
    # 1,000 tokens of 1 microsecond each, beside the pass itself.
    assert switch_seconds(lagging, estimates) == pytest.approx(1e-3, rel=0.05)


def test_bandits_stay_within_the_longest_draft():
    assert max(play(Nightjar(50), 300, lambda length: 1.0)) <= K
    assert max(play(BanditSpec(50), 300, lambda length: 1.0)) <= K
