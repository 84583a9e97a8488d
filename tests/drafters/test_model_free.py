"""What drafters without a model share: when they are asked."""

import numpy as np
import pytest

from smartspec.core.batch import Batch, Verification
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters.model_free import FORCED, REST_AFTER
from smartspec.drafters.ngram_tree import NgramTreeDrafter
from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.drafters.recycling import RecyclingDrafter

BATCH = Batch(decoding=(Request(0, [1, 2, 1, 2, 1], SamplingParams(), seed=0),))
REJECTED, ACCEPTED = Verification((7,), 0), Verification((2, 7), 1)


def steps(drafter, num_steps, result):
    """In which of them it found a draft."""
    found = []
    for _ in range(num_steps):
        drafter.begin_step(BATCH)
        found.append(int(drafter.view(BATCH).lengths[0]) > 0)
        drafter.observe(BATCH, np.array([int(found[-1])]), [result], [])
    return found


def test_a_drafter_that_brings_nothing_is_asked_less_often_until_it_does():
    drafter = PromptLookupDrafter(max_draft_tokens=2)
    (last, rarely), (first, seldom) = REST_AFTER
    assert all(steps(drafter, first, REJECTED))
    assert sum(steps(drafter, last - first, REJECTED)) == (last - first) // seldom
    assert sum(steps(drafter, 10 * rarely, REJECTED)) == 10
    assert sum(steps(drafter, rarely, ACCEPTED)) >= rarely - 1, "one accepted token, and it is asked every time"


def test_steps_that_only_prefill_do_not_count():
    drafter = PromptLookupDrafter(max_draft_tokens=2)
    for _ in range(2 * REST_AFTER[0][0]):
        drafter.begin_step(Batch())
        drafter.observe(Batch(), np.zeros(0, dtype=int), [], [])
    assert all(steps(drafter, 3, REJECTED))


class Literal:
    """A grammar of one text alone, of which num_said tokens are said."""

    def __init__(self, token_ids, num_said=0):
        self.left = token_ids[num_said:]

    def forced(self):
        return self.left

    def num_allowed(self, token_ids):
        pairs = zip(token_ids, self.left, strict=False)
        return next((i for i, (said, forced) in enumerate(pairs) if said != forced), len(token_ids))


def drafted(grammar, drafter):
    request = Request(0, [1, 2, 1, 2, 1], SamplingParams(), seed=0, grammar=grammar)
    drafter.begin_step(Batch(decoding=(request,)))
    (draft,), view = drafter.draft(Batch(), np.array([9]), None), drafter.view(Batch(decoding=(request,)))
    return draft.token_ids.tolist(), int(view.match_lengths[0])


@pytest.mark.parametrize("drafter", [PromptLookupDrafter, RecyclingDrafter, NgramTreeDrafter])
def test_what_a_grammar_forces_is_drafted(drafter):
    drafter = drafter(max_draft_tokens=3)
    assert drafted(Literal([7, 8, 9, 7]), drafter) == ([7, 8, 9], FORCED)
    assert FORCED in drafter.spec.match_lengths


def test_a_draft_that_holds_what_is_forced_stays():
    token_ids, match_length = drafted(Literal([2, 1]), PromptLookupDrafter(max_draft_tokens=4))
    assert token_ids[:2] == [2, 1] and match_length < FORCED


def test_what_is_forced_is_drafted_by_a_drafter_that_rests():
    drafter = PromptLookupDrafter(max_draft_tokens=2)
    steps(drafter, 2 * REST_AFTER[0][0] + 1, REJECTED)
    assert steps(drafter, 1, REJECTED) == [False]
    assert drafted(Literal([7]), drafter) == ([7], FORCED)
