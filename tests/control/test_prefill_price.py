"""What time is worth in a mixed batch: the usual price, but where all is prefill's and arrivals are closed-loop."""

import numpy as np
import pytest
from drafter_cases import estimates_of, found

from smartspec.control.goodput.arrivals import Arrivals
from smartspec.control.goodput.prefill_price import PrefillPrice
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.policy import no_drafts
from smartspec.control.records import BatchView, StepFeedback, StepSeconds

R, PREFILL = 8, 1000
LATENCY = LatencyModel(CostCurve(knots=(1.0, 256.0), slopes=(0.0, 3e-5), constant=0.006, per_row=2e-5))
USUAL = 2000.0


def make_view(num_requests=R, prefill=PREFILL, weight=1.0):
    ids, zeros = np.arange(R), np.zeros(R, dtype=int)
    return BatchView(
        ids, np.full(R, 100), np.full(R, 4), (found(zeros),), num_prefills=int(prefill > 0),
        prefill_tokens=prefill, num_waiting=num_requests - R - int(prefill > 0), weights=np.full(R, weight),
    )  # fmt: skip


def step(price, arrivals, view):
    zeros = np.zeros(R, dtype=int)
    seconds = StepSeconds(0.0, 0.03, 0.0)
    arrivals.observe(view)
    price.observe(StepFeedback(view, no_drafts(R), zeros, zeros, zeros, zeros, R, seconds))


def played(num_steps, is_open, free_every=None, seed=0):
    """Every request ends with probability 1 / 20 in a step; where is_open, others come independently of that."""
    rng, num_requests, arrivals = np.random.default_rng(seed), 32, Arrivals()
    price = PrefillPrice(arrivals)
    for index in range(num_steps):
        is_free = free_every is not None and index % free_every == 0
        step(price, arrivals, make_view(max(num_requests, R + 1), 0 if is_free else PREFILL))
        num_ended = int(rng.binomial(num_requests, 0.05))
        for _ in range(num_ended):
            arrivals.request_ended()
        num_requests += int(rng.poisson(32 * 0.05)) - num_ended if is_open else 0
    return price


def value(price, weight=1.0):
    estimates = estimates_of(LATENCY, np.zeros((R, 4)))
    return price.value_of_time(USUAL, make_view(weight=weight), estimates)


@pytest.mark.parametrize("seed", range(5))
def test_where_requests_come_as_they_like_the_usual_price_holds(seed):
    assert value(played(2000, is_open=True, seed=seed)) == pytest.approx(USUAL, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_where_they_replace_each_other_a_token_saves_what_its_row_adds(seed):
    """A row beside so much prefill takes 30 microseconds for its token and 20 for itself."""
    assert value(played(2000, is_open=False, seed=seed)) == pytest.approx(1 / 5e-5, rel=0.05)


def test_steps_without_prefill_bring_the_usual_price_back():
    assert value(played(2000, is_open=False, free_every=5)) == USUAL
    rare = value(played(2000, is_open=False, free_every=16))
    assert 1.2 * USUAL < rare < 0.9 / 5e-5


def test_nothing_is_believed_before_it_was_seen():
    assert PrefillPrice(Arrivals()).usual_part == 1.0
    assert value(played(20, is_open=False)) == USUAL


def test_tokens_count_with_their_weights():
    price = played(2000, is_open=False)
    usual = USUAL * 1e-9
    estimates = estimates_of(LATENCY, np.zeros((R, 4)))
    assert price.value_of_time(usual, make_view(weight=1e-9), estimates) == pytest.approx(1e-9 * value(price))
    assert price.value_of_time(0.0, make_view(weight=0.0), estimates) == 0.0


def test_a_row_is_never_worth_more_than_usual():
    """Time is not made cheaper, whatever a row is predicted to add."""
    slow_rows = LatencyModel(CostCurve(knots=(0.0,), slopes=(1e-6,), constant=0.006, per_row=0.01))
    price = played(2000, is_open=False)
    assert price.value_of_time(USUAL, make_view(), estimates_of(slow_rows, np.zeros((R, 4)))) == USUAL


def view_with_waiting(num_waiting):
    return make_view(R + 1 + num_waiting)


def test_of_a_long_queue_not_all_will_decode_together():
    """Under open-loop arrivals those at its head have left before its end is prefilled."""
    price = played(2000, is_open=True)
    assert price.num_joining(view_with_waiting(num_waiting=5)) == 5
    assert price.num_joining(view_with_waiting(num_waiting=500)) == 2 * (R + 1)


def test_of_a_wave_all_will():
    """A jump in the load, or a closed load: nobody comes, so the queue is prefilled before many have left."""
    assert PrefillPrice(Arrivals()).num_joining(view_with_waiting(num_waiting=500)) == 500
    assert played(2000, is_open=False).num_joining(view_with_waiting(num_waiting=500)) == 500
