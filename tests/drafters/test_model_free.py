"""What drafters without a model share: when they are queried."""

import numpy as np
import pytest

from smartspec.core.batch import Batch, Verification
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters.model_free import FORCED
from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.drafters.recycling import RecyclingDrafter

REJECTED = Verification((7,), 0)


def new_request():
    return Request(0, [1, 2, 1, 2, 1], SamplingParams(), seed=0)


def steps(drafter, num_steps, result, is_queried=True, request=None):
    """In which of them it found a draft."""
    found, batch = [], Batch(decoding=(request or new_request(),))
    for _ in range(num_steps):
        drafter.begin_step(batch)
        found.append(int(drafter.view(batch, is_queried).lengths[0]) > 0)
        drafter.observe(batch, np.array([int(found[-1])]), [result], [])
        batch.decoding[0].append(result.emitted_token_ids)
    return found


def test_a_step_that_does_not_query_drafters_has_no_drafts_but_the_drafter_goes_on_learning():
    drafter, request = RecyclingDrafter(max_draft_tokens=2), new_request()
    assert steps(drafter, 2, REJECTED, is_queried=False, request=request) == [False, False]
    assert steps(drafter, 1, REJECTED, request=request) == [True], "what was emitted then is known"


def test_what_is_learned_late_is_what_would_have_been_learned_at_once():
    rng = np.random.default_rng(0)
    requests = [
        Request(number, [1, 2, 3], SamplingParams(max_tokens=500), seed=0) for number in range(3)
    ]
    batch = Batch(decoding=tuple(requests))
    often, seldom = (
        RecyclingDrafter(max_draft_tokens=4),
        RecyclingDrafter(max_draft_tokens=4),
    )
    for step in range(200):
        # Of other words: which of two requests wrote last does not count.
        said = [
            rng.integers(10 * number, 10 * number + 6, rng.integers(1, 4)).tolist()
            for number in range(3)
        ]
        emitted = [Verification(tuple(tokens), 0) for tokens in said]
        is_compared = step % 37 == 0
        found = []
        for drafter in (often, seldom):
            drafter.begin_step(batch)
            drafter.view(batch, is_queried=drafter is often or is_compared)
            found.append(
                [draft.token_ids.tolist() for draft in drafter.draft(batch, np.full(3, 4), None)]
            )
            drafter.observe(batch, np.zeros(3, dtype=int), emitted, [])
        if is_compared:
            assert found[0] == found[1]
        for request, verification in zip(requests, emitted, strict=True):
            request.append(verification.emitted_token_ids)


class Literal:
    """A grammar of one text alone, of which num_said tokens are said."""

    def __init__(self, token_ids, num_said=0):
        self.left = token_ids[num_said:]

    def forced(self):
        return self.left

    def num_allowed(self, token_ids):
        pairs = zip(token_ids, self.left, strict=False)
        return next((i for i, (said, forced) in enumerate(pairs) if said != forced), len(token_ids))


def drafted(grammar, drafter, is_queried=True):
    request = Request(0, [1, 2, 1, 2, 1], SamplingParams(), seed=0, grammar=grammar)
    batch = Batch(decoding=(request,))
    drafter.begin_step(batch)
    view = drafter.view(batch, is_queried)
    (draft,) = drafter.draft(batch, np.array([9]), None)
    return draft.token_ids.tolist(), int(view.match_lengths[0])


@pytest.mark.parametrize("drafter", [PromptLookupDrafter, RecyclingDrafter])
def test_what_a_grammar_forces_is_drafted(drafter):
    drafter = drafter(max_draft_tokens=3)
    assert drafted(Literal([7, 8, 9, 7]), drafter) == ([7, 8, 9], FORCED)
    assert FORCED in drafter.spec.match_lengths


def test_a_draft_that_holds_what_is_forced_stays():
    token_ids, match_length = drafted(Literal([2, 1]), PromptLookupDrafter(max_draft_tokens=4))
    assert token_ids[:2] == [2, 1] and match_length < FORCED


def test_what_is_forced_is_drafted_in_a_step_that_does_not_query_drafters():
    drafter = PromptLookupDrafter(max_draft_tokens=2)
    assert steps(drafter, 1, REJECTED) == [True]
    assert drafted(Literal([7]), drafter, is_queried=False) == ([7], FORCED)
