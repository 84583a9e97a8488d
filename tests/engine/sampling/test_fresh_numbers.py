"""No random number decides in two steps: see engine.sampling.randomness."""

from collections import Counter

import numpy as np
import pytest
import torch
from markov_engine import TableExecutor, TableRunner, serve
from markov_model import PROMPT, make_requests
from test_policy_distribution import BATCH, K, drafters_of, new_policy, sometimes, tables
from test_tree_distribution import TABLE, arbitrary_tree, best_first_tree, drawn_chain

from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.drafting.model.drafter import DraftModel
from smartspec.engine.sampling import race, sampler
from smartspec.engine.sampling.randomness import DRAFT, PURPOSES, position_keys, uniform
from smartspec.engine.sampling.verification import verify


@pytest.mark.parametrize("policy", ["fixed:5", "goodput", "specdec++:0.6"])
@pytest.mark.parametrize("drafters", ["model", "model+other model", "lookup+model+head"])
def test_no_draft_token_is_drawn_with_a_number_of_another(monkeypatch, policy, drafters):
    drawn: Counter[tuple[int, int, int]] = Counter()

    def noted(seeds, positions, purpose):
        if isinstance(purpose, int) and purpose % PURPOSES == DRAFT:
            drawn.update(
                (seed, place, purpose)
                for seed, place in zip(seeds.tolist(), positions.tolist(), strict=True)
            )
        return uniform(seeds, positions, purpose)

    monkeypatch.setattr(sampler, "uniform", noted)
    requests = [
        Request(i, [0], SamplingParams(max_tokens=40, ignore_eos=True), seed=i)
        for i in range(BATCH)
    ]
    executor = TableExecutor(tables()[0], sometimes(drafters_of(drafters)))
    serve(new_policy(policy), requests, executor, batch=BATCH, max_draft_tokens=K)
    assert len(drawn) > 3 * BATCH and max(drawn.values()) == 1
    positions = Counter((seed, place) for seed, place, _ in drawn)
    assert max(positions.values()) > 1, "after rejections positions are drafted again"


@pytest.mark.parametrize("make", [drawn_chain, best_first_tree, arbitrary_tree])
def test_what_would_be_decided_after_the_first_rejection_shows_nowhere(monkeypatch, make):
    random, requests = np.random.default_rng(3), make_requests(300, logprobs=1)
    drafts = [make(random) for _ in requests]
    last = [[PROMPT[-1], *draft.token_ids] for draft in drafts]
    logits = torch.from_numpy(TABLE[np.concatenate(last).astype(int)])
    expected = verify(logits, requests, drafts)
    pairs = zip(requests, expected, strict=True)
    first_open = {
        request.seed: request.num_tokens + len(found.emitted_token_ids) for request, found in pairs
    }
    num_other = 0

    def others_where_open(function):
        def other(seeds, positions, *purpose):
            nonlocal num_other
            is_open = positions >= np.array([first_open[seed] for seed in seeds.tolist()], int)
            num_other += int(is_open.sum())
            return function(seeds + is_open, positions, *purpose)

        return other

    monkeypatch.setattr(sampler, "uniform", others_where_open(uniform))
    monkeypatch.setattr(race, "uniform", others_where_open(uniform))
    monkeypatch.setattr(race, "position_keys", others_where_open(position_keys))
    assert verify(logits, requests, drafts) == expected and num_other > 100


def test_draft_numbers_do_not_depend_on_other_requests():
    """Its own seed and how long its text is: a request drafts alike alone and beside others."""

    def drafts_of(num_requests):
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        requests = [Request(i, [0], params, seed=i) for i in range(num_requests)]
        executor = TableExecutor(tables()[0], (DraftModel(TableRunner(tables()[1]), num_requests),))
        serve("fixed:4", requests, executor, batch=num_requests, max_draft_tokens=4)
        return requests[0].token_ids.tolist()

    assert drafts_of(1) == drafts_of(8)
