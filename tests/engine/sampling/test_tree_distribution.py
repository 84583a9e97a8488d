"""What trees emit has the target's distribution: chi-square tests, against the exact one and
against the rule written down plainly, with random numbers of its own.
"""

from collections import Counter
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from markov_model import (
    PROMPT,
    decode,
    make_requests,
    markov_logits,
    p_of_fit,
    p_of_pairs,
    p_value,
    reference_probs,
)
from random_trees import random_tree, tree_of

from smartspec.core.batch import Draft, chain, shorten
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.drafting.trees.expansion import TreeExpansion, best_children
from smartspec.engine.sampling.verification import verify

V, NUM = 5, 4_000
# the target's logits by last token
TABLE = np.random.default_rng(1).normal(0, 1.2, (V, V)).astype(np.float32)
DRAFT = torch.from_numpy(
    TABLE + np.random.default_rng(2).normal(0, 1.0, TABLE.shape).astype(np.float32)
).softmax(-1)
OPTIONS = {"temperature": 0.8, "top_k": 4}
# Of the p-values of a right rule one in a thousand is smaller; the wrong ones below have less than
# a millionth.
LEAST, WRONG = 1e-3, 1e-6


def drawn_chain(random: np.random.Generator) -> Draft:
    token_ids = [PROMPT[-1]]
    for _ in range(int(random.integers(1, 4))):
        q = DRAFT[token_ids[-1]].double().numpy()
        token_ids.append(int(random.choice(V, p=q / q.sum())))
    return chain(token_ids[1:], probs=DRAFT[token_ids[:-1]])


def best_first_tree(random: np.random.Generator) -> Draft:
    """As a head makes one: of the likeliest two children of nodes, in one to three passes, the best
    five."""
    growing, fed, token_ids, place = TreeExpansion(2, 5), [-1], PROMPT[-1:], 1
    for _ in range(int(random.integers(1, 4))):
        growing.add(fed, *best_children(DRAFT[token_ids].log(), 2))
        if not (fed := growing.frontier()):
            break
        growing.feed(fed, place)
        place += len(fed)
        token_ids = growing.token_ids(fed).tolist()
    return growing.draft()


def arbitrary_tree(random: np.random.Generator) -> Draft:
    """Point masses of whatever tokens and shape, also such as the target rules out."""
    draft = random_tree(random, int(random.integers(1, 8)), [], V)
    _, distinct = np.unique(np.stack([draft.parents, draft.token_ids]), axis=1, return_index=True)
    return draft if len(distinct) == len(draft) else arbitrary_tree(random)


@cache
def by_engine(make, **params) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """The first two tokens of NUM requests, int [NUM, 2], the first step with a draft and the rest
    without, and what the first step emitted."""
    requests, random = make_requests(NUM, max_tokens=2, **params), np.random.default_rng(7)
    logits_of = partial(markov_logits, TABLE)
    drafts = [make(random) for _ in requests]
    first = verify(logits_of(requests, drafts), requests, drafts)
    for request, result in zip(requests, first, strict=True):
        request.append(result.emitted_token_ids)
    decode(logits_of, [request for request in requests if request.finish_reason is None])
    outputs = np.stack([request.output_token_ids for request in requests])
    return outputs, [result.emitted_token_ids for result in first]


def by_hand(make, **params) -> list[tuple[int, ...]]:
    """What the first step emits, by the papers' rule (Leviathan et al., arXiv 2211.17192, for
    tokens that were drawn; EAGLE, arXiv 2401.15077, for trees of point masses, which are drawn with
    certainty)."""
    target = [reference_probs(row, SamplingParams(**params), [], []).tolist() for row in TABLE]
    random, emitted = np.random.default_rng(8), []
    for _ in range(NUM):
        draft = make(random)
        parents, tokens = draft.parents.tolist(), draft.token_ids.tolist()
        node, text = -1, [PROMPT[-1]]
        while node is not None:
            p, parent, node = target[text[-1]], node, None
            for child in [number for number, of in enumerate(parents) if of == parent]:
                token = tokens[child]
                q = (
                    np.eye(V)[token].tolist()
                    if draft.probs is None
                    else draft.probs[child].tolist()
                )
                if random.random() < p[token] / q[token]:
                    node = child
                    break
                owed = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
                p = [x / sum(owed) for x in owed]
            text.append(
                tokens[node] if node is not None else int(random.choice(V, p=np.array(p) / sum(p)))
            )
        emitted.append(tuple(text[1:]))
    return emitted


def p_of_first(emitted: list[tuple[int, ...]]) -> float:
    """Of the first token alone."""
    counts = np.bincount([tokens[0] for tokens in emitted], minlength=V)
    return p_of_fit(counts, reference_probs(TABLE[PROMPT[-1]], SamplingParams(), [], []))


def p_of_both(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> float:
    """Of two samples of as many steps, were they of one distribution: of how much a step emits and
    its first tokens. Outcomes seen fewer than ten times count as one."""
    counts = [Counter((len(tokens), tokens[:2]) for tokens in emitted) for emitted in (one, other)]
    common = [
        outcome
        for outcome in counts[0] | counts[1]
        if counts[0][outcome] + counts[1][outcome] >= 10
    ]
    table = np.array([[count[outcome] for outcome in common] for count in counts], dtype=float)
    table = np.concatenate([table, NUM - table.sum(axis=1, keepdims=True)], axis=1)
    table = table[:, table.sum(axis=0) > 0]
    return p_value(
        float(((table[0] - table[1]) ** 2 / table.sum(axis=0)).sum()), table.shape[1] - 1
    )


@pytest.mark.parametrize("params", [{}, OPTIONS], ids=["plain", "filtered"])
@pytest.mark.parametrize("make", [drawn_chain, best_first_tree, arbitrary_tree])
def test_what_is_emitted_has_the_targets_distribution_and_is_as_much_as_the_rule_accepts(
    make, params
):
    outputs, emitted = by_engine(make, **params)
    assert p_of_pairs(outputs, TABLE, SamplingParams(**params)) > LEAST
    assert p_of_both(emitted, by_hand(make, **params)) > LEAST
    assert sum(map(len, emitted)) > 1.2 * NUM


def drops_the_unlikely(random: np.random.Generator) -> Draft:
    """A draft ends before a token that was unlikely to be drawn."""
    draft = drawn_chain(random)
    is_likely = [
        probs[token] >= 0.2 for probs, token in zip(draft.probs, draft.token_ids, strict=True)
    ]
    return shorten(draft, [*is_likely, False].index(False))


def says_it_was_sure(random: np.random.Generator) -> Draft:
    """Drawn from distributions that are not those it names."""
    draft = drawn_chain(random)
    return replace(draft, probs=(2 * draft.probs.log()).softmax(-1))


@pytest.mark.parametrize("make", [drops_the_unlikely, says_it_was_sure])
def test_biased_drafts_fail_the_same_tests(make):
    """In the engine and in the rule by hand: nothing but the drafts is wrong."""
    (outputs, of_engine), of_rule = by_engine(make), by_hand(make)
    assert (
        p_of_pairs(outputs, TABLE, SamplingParams()) < WRONG
        and p_of_first(of_engine) < WRONG
        and p_of_first(of_rule) < WRONG
    )
    assert p_of_both(of_engine, of_rule) > LEAST


def test_a_tree_whose_tokens_were_drawn_is_refused():
    """Its nodes are compared with the target's own tokens, which is exact for point masses
    alone."""
    draft = tree_of([1, 2], [-1, -1], probs=torch.full((2, V), 0.2))
    with pytest.raises(
        ValueError, match="2 nodes of a draft tree have probs: draw chains, or leave probs out"
    ):
        verify(torch.from_numpy(TABLE[[0, 1, 2]]), make_requests(1), [draft])
