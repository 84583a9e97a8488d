"""What is emitted has the target's distribution, for every kind of draft.

The first two emitted tokens of many requests against their exact distribution, by chi-square
tests; lengths change in every step. That biased drafts fail such tests, and that as much is
accepted as the rule says: test_tree_distribution.py.
"""

from functools import partial

import numpy as np
import pytest
import torch
from markov_model import (
    decode,
    make_requests,
    markov_logits,
    no_drafts,
    p_of_fit,
    p_of_pairs,
    reference_probs,
)

from smartspec.core.batch import chain, shorten
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.sampling.sampler import sample_draft
from smartspec.engine.sampling.verification import verify

NUM = 5_000  # a deviation of an eighth of each probability is seen nearly always
VOCABULARY, LONGEST = 6, 3
TARGET = np.random.default_rng(1).normal(0, 1.2, (VOCABULARY, VOCABULARY)).astype(np.float32)
DRAFT = (TARGET + np.random.default_rng(2).normal(0, 1.2, TARGET.shape)).astype(np.float32)
LEAST = 1e-4  # of the p-values of a right rule one in ten thousand is smaller


target_logits = partial(markov_logits, TARGET)


def likely_draft(requests):
    """Point masses: the draft model's likely tokens."""
    best = DRAFT.argmax(axis=1)
    first = best[[request.token_ids[-1] for request in requests]]
    return [chain(tokens) for tokens in np.stack([first, best[first], best[best[first]]], axis=1)]


def arbitrary_draft(requests):
    random = np.random.default_rng(len(requests))
    return [chain(tokens) for tokens in random.integers(0, VOCABULARY, (len(requests), LONGEST))]


def drawn_draft(requests):
    """Sampled from the draft model, with the distributions."""
    last = np.array([request.token_ids[-1] for request in requests])
    drawn, probs = [], []
    for depth in range(LONGEST):
        token_ids, rows = sample_draft(torch.from_numpy(DRAFT[last]), requests, depth)
        last = token_ids.numpy()
        drawn.append(last)
        probs.append(torch.stack(rows))
    pairs = zip(np.stack(drawn, axis=1), torch.stack(probs, dim=1), strict=True)
    return [chain(tokens, probs=rows) for tokens, rows in pairs]


def confident_draft(requests):
    """Sampled, and ended after the first token that was drawn from a distribution without a likely
    token."""

    def first_doubt(probs):
        return int(np.append(probs.amax(dim=1).numpy() < 0.6, True).argmax()) + 1

    return [shorten(draft, first_doubt(draft.probs)) for draft in drawn_draft(requests)]


def of_any_length(drafter):
    """Other lengths in every step."""
    random = np.random.default_rng(0)

    def drafts(requests):
        lengths = random.integers(0, LONGEST + 1, len(requests)).tolist()
        return list(map(shorten, drafter(requests), lengths))

    return drafts


OPTIONS = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.75, "temperature": 1.3},
    "min_p": {"min_p": 0.15},
    "all_filters": {"top_k": 5, "top_p": 0.9, "min_p": 0.02, "temperature": 1.1},
    "rules": {
        "logit_bias": ((2, 1.5), (4, -1.0)),
        "bad_words_token_ids": ((0,), (2, 3)),
        "allowed_token_ids": (0, 1, 2, 3, 4),
    },
    "rules_and_penalties": {
        "logit_bias": ((2, 1.5),),
        "bad_words_token_ids": ((1, 1),),
        "repetition_penalty": 1.4,
    },
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.8, "frequency_penalty": 0.5},
}
CASES = [
    *((likely_draft, name) for name in ("plain", "top_p", "all_filters", "penalties", "rules")),
    *((drawn_draft, name) for name in OPTIONS),
    *((confident_draft, name) for name in ("plain", "all_filters")),
    (arbitrary_draft, "all_filters"),
    (no_drafts, "all_filters"),
]


@pytest.mark.parametrize(("drafter", "name"), CASES)
def test_emitted_tokens_have_the_targets_distribution(drafter, name):
    requests = make_requests(NUM, max_tokens=2, **OPTIONS[name])
    outputs, num_accepted, num_drafted = decode(target_logits, requests, of_any_length(drafter))
    assert p_of_pairs(outputs, TARGET, requests[0].params) > LEAST
    assert num_accepted >= 0.05 * num_drafted


class ShortSighted:
    """A grammar that allows every token, and cannot tell what may come after some draft tokens."""

    def accept(self, token_ids):
        pass

    def allowed(self, token_ids=()):
        return np.full(VOCABULARY, not set(token_ids) & {1, 3, 4})


@pytest.mark.parametrize("drafter", [likely_draft, drawn_draft])
def test_a_draft_that_ends_where_a_grammar_cannot_tell_keeps_the_distribution(drafter):
    """The tokens it cannot see past are accepted like others: what ends is what comes after
    them."""
    requests = make_requests(NUM, max_tokens=2)
    for request in requests:
        request.grammar = ShortSighted()
    outputs, num_accepted, num_drafted = decode(target_logits, requests, of_any_length(drafter))
    assert p_of_pairs(outputs, TARGET, requests[0].params) > LEAST
    assert num_accepted >= 0.02 * num_drafted


def verified(draft_token: int, draft_probs: np.ndarray, **params):
    """Of one draft token at the prompt's end, by NUM requests: the emitted first tokens [V]. It is
    rejected."""
    rows = torch.from_numpy(draft_probs.astype(np.float32))[None]
    requests, drafts = make_requests(NUM, **params), [chain([draft_token], probs=rows)] * NUM
    results = verify(target_logits(requests, drafts), requests, drafts)
    assert not any(result.num_accepted for result in results)
    return np.bincount([r.emitted_token_ids[0] for r in results], minlength=VOCABULARY)


def test_a_draft_token_its_distribution_rules_out_is_rejected_and_the_residual_recovers():
    target_probs = reference_probs(TARGET[1], SamplingParams(), [], [])
    token = int(target_probs.argmax())
    draft_probs = np.where(np.arange(VOCABULARY) == token, 0, 1 / (VOCABULARY - 1))
    residual = np.maximum(target_probs - draft_probs, 0)
    assert p_of_fit(verified(token, draft_probs), residual / residual.sum()) > LEAST


def test_a_residual_without_mass_falls_back_to_the_target():
    """Both distributions are the same point mass, yet the draft token is another one."""
    best = int(TARGET[1].argmax())
    found = verified((best + 1) % VOCABULARY, np.eye(VOCABULARY)[best], top_k=1)
    assert found[best] == NUM
