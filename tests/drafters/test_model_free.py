"""What drafters without a model share: when they are asked."""

import numpy as np

from smartspec.core.batch import Batch, Verification
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters.model_free import REST_AFTER
from smartspec.drafters.prompt_lookup import PromptLookupDrafter

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
