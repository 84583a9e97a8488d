"""How many tokens requests still generate, from those that ended and those that still run."""

import numpy as np
import pytest
from factories import make_outcome, make_view

from smartspec.control.goodput.draft_prefill import Lifetime
from smartspec.control.goodput.settings import DraftPrefillSettings
from smartspec.control.records import Plan

SETTINGS = DraftPrefillSettings()


def observe(lifetime, request_ids, accepted=0):
    """A step in which each of these requests makes 1 + accepted tokens."""
    num_rows = len(request_ids)
    plan = Plan(np.full(num_rows, accepted), np.zeros(num_rows, dtype=int))
    lifetime.observe(make_outcome(make_view(request_ids), plan))


def run(lifetime, lengths, num_rows=4, tokens_per_step=1):
    """A steady-state batch whose requests make these many tokens, one request after the other."""
    waiting, running = list(enumerate(lengths)), {}
    while waiting:
        while len(running) < num_rows and waiting:
            request_id, length = waiting.pop(0)
            running[request_id] = length
        observe(lifetime, list(running), tokens_per_step - 1)
        for request_id in list(running):
            running[request_id] -= tokens_per_step
            if running[request_id] <= 0:
                del running[request_id]
                lifetime.request_ended(request_id)


def test_before_anything_is_known_the_prior_holds():
    assert Lifetime(SETTINGS).remaining_tokens == SETTINGS.prior_tokens


@pytest.mark.parametrize("tokens_per_step", [1, 3])
def test_answers_of_one_length_are_found(tokens_per_step):
    lifetime = Lifetime(SETTINGS)
    run(lifetime, [24] * 1000, tokens_per_step=tokens_per_step)
    assert lifetime.remaining_tokens == pytest.approx(24, rel=0.05)


def test_where_lengths_have_no_memory_the_mean_is_what_is_left():
    means = []
    for seed in range(10):
        lifetime = Lifetime(SETTINGS)
        run(lifetime, np.random.default_rng(seed).geometric(1 / 50, 1000).tolist())
        means.append(lifetime.remaining_tokens)
    assert np.mean(means) == pytest.approx(50, rel=0.1)


def test_short_requests_end_first_and_do_not_bias_it():
    """A batch begins with lengths of 10 and 300: after 20 steps only short ones have ended, 8 for 240 tokens made.
    Those that ended would say 10, and the mean over all is 155."""
    lifetime = Lifetime(DraftPrefillSettings(prior_requests=0.01))
    lengths = np.repeat([10, 300], 8)
    for step in range(20):
        running = np.flatnonzero(lengths > step)
        observe(lifetime, running)
        for request_id in running[lengths[running] == step + 1].tolist():
            lifetime.request_ended(request_id)
    assert lifetime.remaining_tokens == pytest.approx((8 * 10 + 8 * 20) / 8, rel=0.1)


def test_what_is_known_fades():
    lifetime = Lifetime(SETTINGS)
    run(lifetime, [200] * 300)
    assert lifetime.remaining_tokens == pytest.approx(200, rel=0.1)
    run(lifetime, [20] * 600)
    assert lifetime.remaining_tokens == pytest.approx(20, rel=0.1)


def test_requests_that_never_decoded_say_nothing():
    """Aborted while they waited, or in their prefill."""
    lifetime = Lifetime(SETTINGS)
    observe(lifetime, [0, 1])
    before = lifetime.remaining_tokens
    for request_id in range(2, 200):
        lifetime.request_ended(request_id)
    assert lifetime.remaining_tokens == before
    lifetime.request_ended(0)
    assert lifetime.remaining_tokens < before
