"""Forced acceptance: accepted lengths have the distribution that was asked for, and text is marked
where it is made."""

import numpy as np
import pytest
import torch
from markov_model import make_requests
from random_trees import tree_of

from smartspec.core.batch import NO_DRAFT, Draft, chain
from smartspec.engine.runtime.config import EngineConfig
from smartspec.engine.sampling.forced_acceptance import verify_forced

VOCABULARY = 8
WRONG, OWN = 5, 3  # the target never wants the draft's token


def verified(acceptance: float, drafts: list[Draft], num: int):
    logits = torch.zeros(sum(len(draft) + 1 for draft in drafts), VOCABULARY)
    logits[:, OWN] = 10.0
    return verify_forced(
        acceptance, logits, make_requests(num, max_tokens=8, temperature=0.0), drafts
    )


@pytest.mark.parametrize("acceptance", [0.5, 0.7, 0.9])
def test_mean_accepted_length_is_that_of_repeated_trials(acceptance):
    """1 + a + ... + a^k tokens of a step, one of them the target's own. 4 standard errors, fixed
    seeds."""
    num, k = 4000, 5
    found = [v.num_accepted for v in verified(acceptance, [chain([WRONG] * k)] * num, num)]
    expected = (1 - acceptance ** (k + 1)) / (1 - acceptance) - 1
    assert abs(np.mean(found) - expected) < 4 * np.std(found) / num**0.5
    share_of_whole = np.mean(np.array(found) == k)
    assert share_of_whole == pytest.approx(acceptance**k, abs=0.04)


def test_all_or_nothing_and_the_targets_own_token_after_it():
    draft = chain([WRONG] * 3)
    (whole,), (none,) = verified(1.0, [draft], 1), verified(0.0, [draft], 1)
    assert (whole.emitted_token_ids, whole.num_accepted) == ((WRONG, WRONG, WRONG, OWN), 3)
    assert (none.emitted_token_ids, none.num_accepted) == ((OWN,), 0)


def test_requests_with_and_without_drafts_keep_their_rows():
    drafts = [NO_DRAFT, chain([WRONG, 6]), NO_DRAFT]
    found = verified(1.0, drafts, 3)
    assert [v.emitted_token_ids for v in found] == [(OWN,), (WRONG, 6, OWN), (OWN,)]


def test_a_step_that_only_begins_a_prompt_has_nothing_to_verify():
    assert verify_forced(0.7, torch.zeros(0, VOCABULARY), [], []) == []


def test_in_a_tree_the_likeliest_child_is_tried():
    """Nodes 0 and 1 follow the text, 2 follows 1, 3 follows 0: the path is 0, 3."""
    tree = tree_of([1, 2, 4, 6], [-1, -1, 1, 0])
    (found,) = verified(1.0, [tree], 1)
    assert (found.accepted_nodes, found.emitted_token_ids) == ((0, 3), (1, 6, OWN))


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_what_is_no_chance_is_refused(value):
    with pytest.raises(ValueError, match=r"forced_acceptance is .* from 0 to 1"):
        EngineConfig(forced_acceptance=value)


def test_invalid_answers_are_not_kept_for_later_ones(tmp_path):
    with pytest.raises(ValueError, match="datastore_memory would keep it: leave one of them out"):
        EngineConfig(forced_acceptance=0.7, datastore_memory=tmp_path)


def test_it_is_never_on_by_default():
    assert EngineConfig().forced_acceptance is None
