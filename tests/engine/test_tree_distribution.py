"""What trees emit has the target's distribution: chi-square tests, against the exact one and against the rule written
down plainly, with random numbers of its own.
"""

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from markov_model import PROMPT, make_requests, p_of_fit, p_value, pair_probs, reference_probs
from random_trees import random_tree

from smartspec.core.batch import NO_DRAFT, Draft
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.drafting.tree_expansion import TreeExpansion, best_children
from smartspec.engine.sampling.verification import verify

V, NUM = 5, 4_000
TABLE = np.random.default_rng(1).normal(0, 1.2, (V, V)).astype(np.float32)  # the target's logits by last token
DRAFT = torch.from_numpy(TABLE + np.random.default_rng(2).normal(0, 1.0, TABLE.shape).astype(np.float32)).softmax(-1)
OPTIONS = {"temperature": 0.8, "top_k": 4}
# Of the p-values of a right rule one in a thousand is smaller; the wrong ones below have less than a millionth.
LEAST, WRONG = 1e-3, 1e-6


def drawn_tree(random: np.random.Generator, *, with_replacement: bool = False) -> Draft:
    """One to three children of the text, drawn without replacement if not said otherwise, and two of each of them."""
    token_ids, parents, probs = [], [], []

    def draw(parent: int, token: int, num: int) -> None:
        q = DRAFT[token].double().numpy().copy()
        for _ in range(num):
            q /= q.sum()
            token_ids.append(int(random.choice(V, p=q)))
            parents.append(parent)
            probs.append(q.copy())
            if not with_replacement:
                q[token_ids[-1]] = 0.0

    draw(-1, PROMPT[-1], int(random.integers(1, 4)))
    for node in range(len(token_ids)):
        draw(node, token_ids[node], 2)
    return as_draft(token_ids, parents, probs)


def as_draft(token_ids: list[int], parents: list[int], probs: list[np.ndarray]) -> Draft:
    rows = torch.from_numpy(np.stack(probs)).float()
    return Draft(np.array(token_ids, dtype=np.int32), np.array(parents, dtype=np.int32), probs=rows)


def drawn_with_replacement(random: np.random.Generator) -> Draft:
    return drawn_tree(random, with_replacement=True)


def drawn_chain(random: np.random.Generator) -> Draft:
    token_ids = [PROMPT[-1]]
    for _ in range(int(random.integers(1, 4))):
        q = DRAFT[token_ids[-1]].double().numpy()
        token_ids.append(int(random.choice(V, p=q / q.sum())))
    return as_draft(token_ids[1:], list(range(-1, len(token_ids) - 2)), [DRAFT[t].numpy() for t in token_ids[:-1]])


def best_first_tree(random: np.random.Generator) -> Draft:
    """As a head makes one: of the likeliest two children of nodes, in one to three passes, the best five."""
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
    """The first two tokens of NUM requests, int [NUM, 2], the first step with a draft and the rest without, and what
    the first step emitted."""
    requests, random = make_requests(NUM, max_tokens=2, **params), np.random.default_rng(7)
    drafts, emitted, running = [make(random) for _ in requests], [], requests
    while running:
        last = [np.concatenate([r.token_ids[-1:], d.token_ids]) for r, d in zip(running, drafts, strict=True)]
        results = verify(torch.from_numpy(TABLE[np.concatenate(last)]), running, drafts)
        emitted.append([result.emitted_token_ids for result in results])
        for request, result in zip(running, results, strict=True):
            request.append(result.emitted_token_ids)
        running = [request for request in running if request.finish_reason is None]
        drafts = [NO_DRAFT] * len(running)
    return np.stack([request.output_token_ids for request in requests]), emitted[0]


def by_hand(make, **params) -> list[tuple[int, ...]]:
    """What the first step emits, by the papers' rule (SpecInfer, arXiv 2305.09781, and Sequoia, arXiv 2402.12374, for
    children that were drawn; EAGLE, arXiv 2401.15077, for point masses, which are drawn with certainty)."""
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
                q = np.eye(V)[token].tolist() if draft.probs is None else draft.probs[child].tolist()
                if random.random() < p[token] / q[token]:
                    node = child
                    break
                owed = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
                p = [x / sum(owed) for x in owed]
            text.append(tokens[node] if node is not None else int(random.choice(V, p=np.array(p) / sum(p))))
        emitted.append(tuple(text[1:]))
    return emitted


def p_of_pairs(outputs: np.ndarray, **params) -> float:
    """Of the first two tokens, were they drawn from the target."""
    counts = np.bincount(outputs[:, 0] * V + outputs[:, 1], minlength=V * V).reshape(V, V)
    return p_of_fit(counts, pair_probs(TABLE, SamplingParams(**params)))


def p_of_first(emitted: list[tuple[int, ...]]) -> float:
    """Of the first token alone."""
    counts = np.bincount([tokens[0] for tokens in emitted], minlength=V)
    return p_of_fit(counts, reference_probs(TABLE[PROMPT[-1]], SamplingParams(), [], []))


def p_of_both(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> float:
    """Of two samples of as many steps, were they of one distribution: of how much a step emits and its first tokens.
    Outcomes seen fewer than ten times count as one."""
    counts = [Counter((len(tokens), tokens[:2]) for tokens in emitted) for emitted in (one, other)]
    common = [outcome for outcome in counts[0] | counts[1] if counts[0][outcome] + counts[1][outcome] >= 10]
    table = np.array([[count[outcome] for outcome in common] for count in counts], dtype=float)
    table = np.concatenate([table, NUM - table.sum(axis=1, keepdims=True)], axis=1)
    table = table[:, table.sum(axis=0) > 0]
    return p_value(float(((table[0] - table[1]) ** 2 / table.sum(axis=0)).sum()), table.shape[1] - 1)


@pytest.mark.parametrize("params", [{}, OPTIONS], ids=["plain", "filtered"])
@pytest.mark.parametrize("make", [drawn_tree, drawn_with_replacement, drawn_chain, best_first_tree, arbitrary_tree])
def test_what_is_emitted_has_the_targets_distribution_and_is_as_much_as_the_rule_accepts(make, params):
    outputs, emitted = by_engine(make, **params)
    assert p_of_pairs(outputs, **params) > LEAST
    assert p_of_both(emitted, by_hand(make, **params)) > LEAST
    assert sum(map(len, emitted)) > 1.2 * NUM


def test_later_children_that_were_drawn_are_worth_having():
    num_of_tree, num_of_chain = (sum(map(len, by_engine(make)[1])) - NUM for make in (drawn_tree, drawn_chain))
    assert num_of_tree > 1.1 * num_of_chain


def drops_the_unlikely(random: np.random.Generator) -> Draft:
    """A node is dropped, with what is after it, as its token was unlikely to be drawn."""
    draft = drawn_tree(random)
    kept: dict[int, int] = {-1: -1}
    for node, parent in enumerate(draft.parents.tolist()):
        if parent in kept and draft.probs[node][draft.token_ids[node]] >= 0.2:
            kept[node] = len(kept) - 1
    nodes = list(kept)[1:]
    if not nodes:
        return NO_DRAFT
    parents = [kept[parent] for parent in draft.parents[nodes].tolist()]
    return as_draft(draft.token_ids[nodes].tolist(), parents, [draft.probs[node].numpy() for node in nodes])


def sorts_children(random: np.random.Generator) -> Draft:
    """The text's children stand by their probability, as if they had been drawn in that order."""
    draft = drawn_tree(random)
    q = DRAFT[PROMPT[-1]].double().numpy().copy()
    token_ids = sorted(draft.token_ids[draft.parents == -1].tolist(), key=lambda token: -q[token])
    probs = []
    for token in token_ids:
        q /= q.sum()
        probs.append(q.copy())
        q[token] = 0.0
    return as_draft(token_ids, [-1] * len(token_ids), probs)


def forgets_earlier_children(random: np.random.Generator) -> Draft:
    """Drawn without replacement, said to be drawn with."""
    draft = drawn_tree(random)
    after = [PROMPT[-1] if parent < 0 else int(draft.token_ids[parent]) for parent in draft.parents]
    return Draft(draft.token_ids, draft.parents, probs=DRAFT[after])


@pytest.mark.parametrize("make", [drops_the_unlikely, sorts_children, forgets_earlier_children])
def test_biased_trees_fail_the_same_tests(make):
    """In the engine and in the rule by hand: nothing but the drafts is wrong."""
    (outputs, of_engine), of_rule = by_engine(make), by_hand(make)
    assert p_of_pairs(outputs) < WRONG and p_of_first(of_engine) < WRONG and p_of_first(of_rule) < WRONG
    assert p_of_both(of_engine, of_rule) > LEAST
