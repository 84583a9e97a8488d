"""How long requests go on, by how long they have gone on."""

import numpy as np
import pytest

from smartspec.control.goodput.remaining_tokens import PRIOR_TOKENS, RemainingTokens
from smartspec.control.policy import no_drafts
from smartspec.control.records import BatchView, StepFeedback, StepSeconds

PROMPT_TOKENS = 1000


def make_view(request_ids, made):
    request_ids, made = np.array(request_ids, dtype=np.int64), np.array(made, dtype=np.int64)
    zeros = np.zeros(len(made), dtype=np.int64)
    return BatchView(request_ids, PROMPT_TOKENS + made, zeros)


def observe(remaining, view, accepted=0):
    plan = no_drafts(view.num_rows)
    accepted = np.full(view.num_rows, accepted)
    remaining.observe(
        StepFeedback(view, plan, accepted, accepted, accepted, accepted, view.num_rows, StepSeconds(0, 0.01, 0))
    )


def run(remaining, lengths, num_rows=4, tokens_per_step=1):
    """A steady-state batch whose requests make these many tokens, one request after the other."""
    waiting = list(enumerate(lengths))
    running = []
    while waiting:
        while len(running) < num_rows and waiting:
            running.append([*waiting.pop(0), 0])
        observe(remaining, make_view([i for i, _, _ in running], [n for _, _, n in running]), tokens_per_step - 1)
        for row in running:
            row[2] += tokens_per_step
        for row in [row for row in running if row[2] >= row[1]]:
            running.remove(row)
            remaining.request_ended(row[0])


def expected(remaining, generated):
    """Of one request that has made that many tokens."""
    probe = [10**6 + generated]
    remaining.of(make_view(probe, [0]))
    tokens = float(remaining.of(make_view(probe, [generated]))[0])
    remaining.request_ended(probe[0])
    return tokens


def test_before_anything_is_known_answers_are_a_few_hundred_tokens():
    remaining = RemainingTokens()
    assert remaining.of_new == pytest.approx(PRIOR_TOKENS)
    assert remaining.of(make_view([1, 2], [0, 0])) == pytest.approx(PRIOR_TOKENS)


@pytest.mark.parametrize("tokens_per_step", [1, 3])
def test_answers_of_one_length_have_the_less_to_come_the_longer_they_are(tokens_per_step):
    remaining = RemainingTokens()
    run(remaining, [24] * 400, tokens_per_step=tokens_per_step)
    assert remaining.of_new == pytest.approx(24, rel=0.15)
    assert expected(remaining, 12) == pytest.approx(12, rel=0.3)
    assert expected(remaining, 17) < 13


def test_where_lengths_have_no_memory_generated_tokens_say_nothing():
    rng = np.random.default_rng(0)
    remaining = RemainingTokens()
    run(remaining, rng.geometric(1 / 50, 2000).tolist())
    assert [expected(remaining, generated) for generated in (0, 20, 60, 150)] == pytest.approx([50] * 4, rel=0.35)


def test_among_many_short_answers_one_that_goes_on_will_go_on():
    rng = np.random.default_rng(1)
    lengths = np.where(rng.random(2000) < 0.8, 10, 300)
    remaining = RemainingTokens()
    run(remaining, lengths.tolist(), num_rows=16)
    assert remaining.of_new == pytest.approx(68, rel=0.35)
    assert expected(remaining, 40) == pytest.approx(260, rel=0.3)


def test_what_is_known_fades():
    remaining = RemainingTokens()
    run(remaining, [200] * 300)
    assert remaining.of_new == pytest.approx(200, rel=0.15)
    run(remaining, [20] * 600)
    assert remaining.of_new == pytest.approx(20, rel=0.3)


def test_requests_that_never_decoded_say_nothing():
    remaining = RemainingTokens()
    observe(remaining, make_view([0, 1], [0, 0]))
    for request_id in range(2, 200):
        remaining.request_ended(request_id)
    assert remaining.of_new == pytest.approx(PRIOR_TOKENS, rel=0.01)


def test_a_request_whose_memory_was_taken_keeps_its_age():
    """It comes back with the tokens it had made as part of its context."""
    remaining = RemainingTokens()
    run(remaining, [24] * 400)
    remaining.of(make_view([7000], [0]))
    observe(remaining, make_view([8000], [0]))  # a step without it
    assert remaining.of(make_view([7000], [17]))[0] < 13
