"""What is emitted has the target's distribution, for every kind of draft.

The first two emitted tokens of 10,000 requests against their exact distribution, by chi-square
tests; lengths change in every step. That biased drafts fail such tests: test_tree_distribution.py.
"""

import numpy as np
import pytest
import torch
from markov_model import (
    decode,
    make_requests,
    markov_logits,
    p_of_pairs,
    reference_probs,
    verify_chains,
)

from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.sampling.sampler import sample_draft

NUM, MANY = 10_000, 30_000
VOCABULARY = 6
TARGET = np.random.default_rng(1).normal(0, 1.2, (VOCABULARY, VOCABULARY)).astype(np.float32)
DRAFT = (TARGET + np.random.default_rng(2).normal(0, 1.2, TARGET.shape)).astype(np.float32)
LEAST = 1e-4  # of the p-values of a right rule one in ten thousand is smaller


def target_logits(requests, drafts):
    return markov_logits(TARGET, requests, drafts)


def no_draft(requests, lengths):
    return [np.empty(0, dtype=np.int32)] * len(requests), [None] * len(requests)


def likely_draft(requests, lengths):
    """Deterministic: the draft model's likely tokens."""
    best = DRAFT.argmax(axis=1)
    chains = []
    for request, length in zip(requests, lengths, strict=True):
        chain = [request.token_ids[-1]]
        for _ in range(length):
            chain.append(best[chain[-1]])
        chains.append(np.array(chain[1:], dtype=np.int32))
    return chains, [None] * len(requests)


def arbitrary_draft(requests, lengths):
    random = np.random.default_rng(int(lengths.sum()))
    return [random.integers(0, VOCABULARY, length, dtype=np.int32) for length in lengths], [
        None
    ] * len(requests)


def drawn_draft(requests, lengths, keep=lambda probs: len(probs)):
    """Sampled from the draft model, with the distributions; keep may cut a chain short by these."""
    last = np.array([request.token_ids[-1] for request in requests])
    drawn, probs = [], []
    for depth in range(max(lengths)):
        token_ids, rows = sample_draft(torch.from_numpy(DRAFT[last]), requests, depth)
        last = token_ids.numpy()
        drawn.append(last)
        probs.append(torch.stack(rows))
    chains, distributions = np.stack(drawn, axis=1).astype(np.int32), torch.stack(probs, dim=1)
    kept = [min(keep(rows), length) for rows, length in zip(distributions, lengths, strict=True)]
    pairs = [(chains[i][:length], distributions[i][:length]) for i, length in enumerate(kept)]
    return [chain for chain, _ in pairs], [rows for _, rows in pairs]


def confident_draft(requests, lengths):
    """Sampled, and ended after the first token that was drawn from a distribution without a likely
    token."""

    def first_doubt(probs):
        doubts = np.flatnonzero(probs.amax(dim=1).numpy() < 0.6)
        return int(doubts[0]) + 1 if len(doubts) else len(probs)

    return drawn_draft(requests, lengths, keep=first_doubt)


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
    (no_draft, "all_filters"),
]


@pytest.mark.parametrize(("drafter", "name"), CASES)
def test_emitted_tokens_have_the_targets_distribution(drafter, name):
    requests = make_requests(NUM, max_tokens=2, **OPTIONS[name])
    outputs, num_accepted, num_drafted = decode(target_logits, requests, drafter)
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
    outputs, num_accepted, num_drafted = decode(target_logits, requests, drafter)
    assert p_of_pairs(outputs, TARGET, requests[0].params) > LEAST
    assert num_accepted >= 0.02 * num_drafted


def first_step(draft_token: int, draft_probs: np.ndarray | None, num: int = MANY):
    """Verify one draft token per request at the prompt's end: acceptance rate and the emitted first
    tokens [V]."""
    requests = make_requests(num)
    drafts = [[draft_token]] * num
    rows = (
        None
        if draft_probs is None
        else torch.from_numpy(draft_probs.astype(np.float32)).unsqueeze(0)
    )
    results = verify_chains(target_logits(requests, drafts), requests, drafts, [rows] * num)
    first = np.bincount([result.emitted_token_ids[0] for result in results], minlength=VOCABULARY)
    return np.mean([result.num_accepted for result in results]), first / num


def test_acceptance_rates_are_those_of_the_rule():
    target_probs = reference_probs(TARGET[1], SamplingParams(), [], [])
    tolerance = 4 * np.sqrt(0.25 / MANY)
    token = int(target_probs.argsort()[-2])
    assert abs(first_step(token, None)[0] - target_probs[token]) < tolerance
    for draft_prob in (target_probs[token] / 2, min(1.0, target_probs[token] * 3)):
        draft_probs = np.full(VOCABULARY, (1 - draft_prob) / (VOCABULARY - 1))
        draft_probs[token] = draft_prob
        expected = min(1.0, target_probs[token] / draft_prob)
        assert abs(first_step(token, draft_probs)[0] - expected) < tolerance


def test_a_draft_token_its_distribution_rules_out_is_rejected_and_the_residual_recovers():
    target_probs = reference_probs(TARGET[1], SamplingParams(), [], [])
    token = int(target_probs.argmax())
    draft_probs = np.full(VOCABULARY, 1 / (VOCABULARY - 1))
    draft_probs[token] = 0
    residual = np.maximum(target_probs - draft_probs, 0)
    acceptance, first = first_step(token, draft_probs)
    assert acceptance == 0
    assert 0.5 * np.abs(first - residual / residual.sum()).sum() < np.sqrt(VOCABULARY / MANY)


def test_a_draft_model_equal_to_the_target_is_always_accepted():
    target_probs = torch.from_numpy(TARGET).softmax(dim=-1)[1].numpy()
    for token in range(VOCABULARY):
        assert first_step(token, target_probs, num=2000)[0] == 1


def test_a_residual_without_mass_falls_back_to_the_target():
    """Both distributions are the same point mass, yet the draft token is another one."""
    requests = make_requests(2000, top_k=1)
    best = int(TARGET[1].argmax())
    draft_probs = torch.zeros(1, VOCABULARY)
    draft_probs[0, best] = 1.0
    drafts = [[(best + 1) % VOCABULARY]] * len(requests)
    results = verify_chains(
        target_logits(requests, drafts), requests, drafts, [draft_probs] * len(requests)
    )
    assert {result.emitted_token_ids for result in results} == {(best,)}
