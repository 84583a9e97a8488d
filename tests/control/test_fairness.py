"""Under open-loop arrivals requests that draft badly count as much by the time they wait."""

import numpy as np
import pytest
from drafter_cases import estimates_of, found, lagging

from smartspec.control.goodput.arrivals import Arrivals
from smartspec.control.goodput.fairness import HARMONIC, fairness_of
from smartspec.control.goodput.policy import Goodput
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import BatchView

ROWS, K = 16, 6
LATENCY = LatencyModel(CostCurve.linear(0.02, 0.0005), (None, CostCurve.linear(0.0005, 0.0)))
SURVIVAL = np.cumprod(np.tile(np.repeat([0.9, 0.5], ROWS // 2)[:, None], K), axis=1)
OF_MODEL = estimates_of(LATENCY, SURVIVAL, SURVIVAL)
NONE = np.zeros(ROWS, dtype=np.int64)


def make_view(num_waiting=0, found_lengths=NONE):
    return BatchView(
        np.arange(ROWS), NONE + 100, NONE + K, (found(found_lengths), lagging(ROWS)), num_waiting=num_waiting
    )


def learned(arrivals, num_steps, is_open, seed=0):
    """In every step each of some requests ends with probability 1 / 20; where is_open, others come independently."""
    rng, num_requests = np.random.default_rng(seed), 3 * ROWS
    for _ in range(num_steps):
        arrivals.observe(make_view(max(num_requests - ROWS, 0)))
        num_ended = int(rng.binomial(num_requests, 0.05))
        for _ in range(num_ended):
            arrivals.request_ended()
        num_requests += int(rng.poisson(3 * ROWS * 0.05)) - num_ended if is_open else 0
    return arrivals


@pytest.mark.parametrize("seed", range(5))
def test_independent_arrivals_are_told_from_replacements(seed):
    assert learned(Arrivals(), 1000, is_open=True, seed=seed).openness > 0.9
    assert learned(Arrivals(), 1000, is_open=False, seed=seed).openness == 0.0


def test_one_belief_decides_whose_tokens_count_and_what_time_is_worth():
    """Before there is evidence, too: arrivals are taken to be closed-loop rather than open-loop."""
    for is_open in (None, False, True):
        policy = Goodput()
        if is_open is not None:
            learned(policy._arrivals, 1000, is_open)
        price = policy._prefill_price
        price._without_prefill = 0.0  # all tokens were made in mixed steps
        assert (fairness_of(OF_MODEL, policy._arrivals) == HARMONIC) == (price.usual_part > 0.5) == bool(is_open)


def test_requests_that_were_there_from_the_start_did_not_arrive():
    """A closed loop begins with all its requests at once."""
    assert learned(Arrivals(), 8, is_open=False).openness < Arrivals().openness


def test_one_jump_of_the_load_does_not_make_it_open():
    """All requests ended at once and four times as many began: the closed loop took 50 steps to recover."""
    arrivals = Arrivals()
    for num_requests, num_ended in ((ROWS, 0), (ROWS, 4), (ROWS, 4), (4 * ROWS, ROWS), (4 * ROWS, ROWS)):
        for _ in range(num_ended):
            arrivals.request_ended()
        arrivals.observe(make_view(num_requests - ROWS))
        assert not arrivals.are_open


def test_the_mean_is_harmonic_where_requests_come_as_they_like():
    assert fairness_of(OF_MODEL, learned(Arrivals(), 1000, is_open=True)) == HARMONIC
    assert fairness_of(OF_MODEL, learned(Arrivals(), 1000, is_open=False)) == 0.0


def test_the_mean_is_arithmetic_where_drafts_come_now_and_then():
    """Without a draft model."""
    assert fairness_of(estimates_of(LATENCY, SURVIVAL), learned(Arrivals(), 1000, is_open=True)) == 0.0


def test_one_model_free_draft_does_not_change_whose_tokens_count():
    """A match of prompt lookup in one row: the draft model drafts as long for the others."""
    policy, one_found = Goodput(), NONE + (np.arange(ROWS) == 0)
    learned(policy._arrivals, 1000, is_open=True)
    lengths = [
        policy.plan_draft(make_view(found_lengths=found_lengths), OF_MODEL).lengths
        for found_lengths in (NONE, one_found)
    ]
    assert np.array_equal(lengths[0][1:], lengths[1][1:])


def test_requests_that_draft_badly_get_more_where_requests_come_as_they_like():
    lengths = {}
    for is_open in (False, True):
        policy = Goodput()
        learned(policy._arrivals, 1000, is_open)
        plan = policy.plan_draft(make_view(), OF_MODEL)
        lengths[is_open] = plan.lengths[: ROWS // 2].sum(), plan.lengths[ROWS // 2 :].sum()
    assert lengths[True][1] > lengths[False][1] and lengths[True][0] <= lengths[False][0], lengths
