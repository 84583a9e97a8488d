"""adaedl ends drafts by a threshold that moves by a thousandth after each step, by how much of a
draft was accepted.

Tables for which that thousandth decides: a request is led to an acceptance of 0.9 of its drafts;
then a draft that was wrong from its eleventh token on is long or short by which token was drawn at
the fork, and the entropy before the fork, reached again in the next steps, lies within one step of
the threshold.
"""

import numpy as np
import pytest
from markov_engine import TableExecutor, TableRunner, serve
from markov_model import p_of_fit
from test_policy_distribution import BIASED, LEAST

from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.drafting.model.drafter import DraftModel
from smartspec.engine.sampling import sampler

K, BATCH, NUM = 20, 32, 240
# six drafts of K tokens that are all accepted, a token after each, and half a draft
SURE = list(range(138))
WRONG = list(range(138, 142))  # what the drafter takes for the way on
RIGHT, BEFORE_EVEN, FIRST, SECOND = 142, 143, 144, 145
SPREAD, EVEN, BEHIND = list(range(146, 162)), list(range(162, 178)), list(range(178, 194))
END = list(range(194, 254))
VOCABULARY = 254
# for which adaedl's bound lies between the thresholds 0.501 and 0.502
ENTROPY = (1 - 0.5015) ** 2 / 0.1


def with_entropy(wanted: float, size: int) -> np.ndarray:
    """A distribution of so many tokens, all but the first of which are equally likely."""
    low, high = 1 / size, 1.0
    for _ in range(60):
        first = (low + high) / 2
        probs = np.array([first] + [(1 - first) / (size - 1)] * (size - 1))
        low, high = (first, high) if -(probs * np.log(probs)).sum() > wanted else (low, first)
    return probs


def tables() -> tuple[np.ndarray, np.ndarray]:
    """Of the target and of the drafter, which differ in one place."""
    table = np.zeros((VOCABULARY, VOCABULARY))
    for path in (SURE, WRONG, [*END, END[0]]):
        table[path[:-1], path[1:]] = 1.0
    table[RIGHT, SPREAD] = 1 / len(SPREAD)
    table[SPREAD, BEFORE_EVEN] = 1.0
    table[BEFORE_EVEN, EVEN] = with_entropy(ENTROPY, len(EVEN))
    for before_fork in (WRONG[-1], *EVEN):
        table[before_fork, [FIRST, SECOND]] = 0.5
    table[FIRST, BEHIND] = 1 / len(BEHIND)
    table[[SECOND, *BEHIND], END[0]] = 1.0
    target, draft = table, table.copy()
    target[SURE[-1], RIGHT] = draft[SURE[-1], WRONG[0]] = 1.0
    return target, draft


def p_of_forks(name: str) -> float:
    target, draft = tables()
    seeds = np.random.default_rng(5).integers(2**62, size=NUM).tolist()
    params = SamplingParams(max_tokens=len(SURE) + 10, ignore_eos=True)
    requests = [Request(number, [SURE[0]], params, seed=seed) for number, seed in enumerate(seeds)]
    executor = TableExecutor(target, (DraftModel(TableRunner(draft), BATCH),))
    serve(name, requests, executor, batch=BATCH, max_draft_tokens=K)
    num_first = sum(FIRST in request.token_ids for request in requests)
    return p_of_fit(np.array([num_first, NUM - num_first]), np.array([0.5, 0.5]))


OTHERS = ["off", "fixed:20", "specdec++", "hf", "dsde", "gammatune", "sglang-ema"]


@pytest.mark.parametrize(
    "name", ["adaedl", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_the_fork_is_even(name):
    assert p_of_forks(name) > LEAST


@pytest.mark.slow
def test_it_is_not_where_drafts_are_drawn_with_the_same_numbers_again(monkeypatch):
    monkeypatch.setattr(sampler, "PURPOSES", 0)
    assert p_of_forks("adaedl") < BIASED
