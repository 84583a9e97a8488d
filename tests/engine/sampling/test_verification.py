"""Verification of chains and trees of point masses changes no token, and keeps requests apart (in
distribution: test_verification_distribution.py, test_tree_distribution.py)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from markov_model import decode
from random_trees import random_tree, tree_of

from smartspec.core.batch import NO_DRAFT, chain
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.sampling.verification import verify

VOCABULARY = 20
NUM_TOKENS = 24
RULES = {
    "logit_bias": ((3, 1.5), (7, -2.0)),
    "allowed_token_ids": tuple(range(1, 15)),
    "bad_words_token_ids": ((5,), (2, 9), (3, 3, 3)),
}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS),
    SamplingParams(
        temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.5, max_tokens=NUM_TOKENS
    ),
    SamplingParams(max_tokens=NUM_TOKENS),
    SamplingParams(top_p=0.8, temperature=0.7, max_tokens=NUM_TOKENS),
    SamplingParams(
        top_k=5, min_p=0.1, presence_penalty=1.0, repetition_penalty=0.8, max_tokens=NUM_TOKENS
    ),
    SamplingParams(temperature=0.0, **RULES, max_tokens=NUM_TOKENS),
    SamplingParams(top_p=0.9, repetition_penalty=1.3, **RULES, max_tokens=NUM_TOKENS),
]


def prefix_logits(text) -> np.ndarray:
    """Logits [V] that depend on the whole text; on a coarse grid, so that ties at the top are
    common."""
    random = np.random.default_rng([int(token_id) for token_id in text])
    return (random.normal(0, 2, VOCABULARY).round() / 2).astype(np.float32)


def model_logits(requests, drafts) -> torch.Tensor:
    rows = [
        prefix_logits([*request.token_ids, *path])
        for request, draft in zip(requests, drafts, strict=True)
        for path in draft.paths
    ]
    return torch.from_numpy(np.stack(rows))


def mixed_requests() -> list[Request]:
    return [
        Request(i, [3, i % VOCABULARY, 1], params, seed=2**70 - i)
        for i, params in enumerate(PARAMS * 3)
    ]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """Every request decoded alone and without drafts."""
    return [decode(model_logits, [request])[0][0].tolist() for request in mixed_requests()]


def oracle(plain, hits: float):
    """A drafter that proposes some of what plain decoding emits, each token spoiled with
    probability 1 - hits."""
    random = np.random.default_rng(5)

    def draft(request):
        right = np.array(
            plain[request.request_id][request.num_output_tokens :][: random.integers(0, 7)], int
        )
        spoiled = random.random(len(right)) >= hits
        return chain(np.where(spoiled, (right + 1) % VOCABULARY, right))

    return lambda requests: list(map(draft, requests))


@pytest.mark.parametrize("hits", [0.0, 0.3, 0.8, 1.0])
def test_deterministic_drafts_never_change_a_token(plain, hits):
    """Greedy and sampled requests in one batch, with penalties, rules and filters, lengths changing
    every step."""
    outputs, num_accepted, num_drafted = decode(model_logits, mixed_requests(), oracle(plain, hits))
    assert outputs.tolist() == plain
    assert num_drafted > 0
    if hits in (0.0, 1.0):
        assert num_accepted == hits * num_drafted


def test_trees_never_change_a_token(plain):
    """Another random tree in every step."""
    random = np.random.default_rng(0)

    def draft(request):
        ground_truth = plain[request.request_id][request.num_output_tokens :]
        return random_tree(random, int(random.integers(0, 12)), ground_truth, VOCABULARY)

    outputs, num_accepted, _ = decode(
        model_logits, mixed_requests(), lambda requests: list(map(draft, requests))
    )
    assert outputs.tolist() == plain and num_accepted > 100


def test_greedy_requests_keep_their_tokens_with_drawn_drafts_too(plain):
    greedy = [request for request in mixed_requests() if request.params.greedy]
    draft, even = oracle(plain, 0.5), torch.full((NUM_TOKENS, VOCABULARY), 1 / VOCABULARY)

    def drawn(requests):
        return [replace(each, probs=even[: len(each)]) for each in draft(requests)]

    outputs, *_ = decode(model_logits, greedy, drawn)
    assert outputs.tolist() == [plain[request.request_id] for request in greedy]


def test_other_seeds_and_ties_make_a_difference(plain):
    """The equality above has power: a sampled output hangs on its seed, and greedy rows do have
    ties."""
    request = Request(2, [3, 2, 1], PARAMS[2], seed=1)
    assert decode(model_logits, [request])[0][0].tolist() != plain[2]
    rows = np.array([prefix_logits([3, 0, 1, *plain[0][:i]]) for i in range(NUM_TOKENS)])
    assert ((rows == rows.max(axis=1, keepdims=True)).sum(axis=1) > 1).any()


def request_with(seed=0, **params) -> Request:
    return Request(0, [1], SamplingParams(**params), seed=seed)


def test_greedy_accepts_up_to_the_first_difference_and_recovers_the_argmax():
    logits = torch.eye(4) * 5
    request = request_with(temperature=0.0)
    cases = {(0, 1, 2): ((0, 1, 2, 3), 3), (0, 3, 2): ((0, 1), 1), (2, 1, 2): ((0,), 0)}
    for draft, (emitted, num_accepted) in cases.items():
        (result,) = verify(logits, [request], [chain(draft)])
        assert result.emitted_token_ids == emitted and result.num_accepted == num_accepted
        assert result.logprobs is None


def test_a_row_of_a_mixed_batch_is_verified_as_if_alone():
    requests = mixed_requests()
    random = np.random.default_rng(0)
    drafts = [chain(random.integers(0, VOCABULARY, i % 4)) for i in range(len(requests))]
    for i, draft in enumerate(drafts):
        if i % 3:
            rows = random.dirichlet(np.ones(VOCABULARY), len(draft))
            drafts[i] = replace(draft, probs=torch.from_numpy(rows).float())
    together = verify(model_logits(requests, drafts), requests, drafts)
    for request, draft, result in zip(requests, drafts, together, strict=True):
        assert verify(model_logits([request], [draft]), [request], [draft]) == [result]


def test_no_requests_and_empty_drafts_with_distributions():
    assert verify(torch.empty(0, 4), [], []) == []
    request = request_with(seed=3)
    logits = torch.zeros(1, 4)
    plain = verify(logits, [request], [NO_DRAFT])
    assert verify(logits, [request], [chain([], probs=torch.empty(0, 4))]) == plain
    assert plain[0].num_accepted == 0 and len(plain[0].emitted_token_ids) == 1


def test_logprobs_are_those_of_the_unmodified_distribution():
    random = np.random.default_rng(0)
    logits = torch.from_numpy(random.normal(0, 2, (5, 8)).astype(np.float32))
    before = logits.clone()
    expected = logits.double().log_softmax(dim=-1)
    options = {"temperature": 0.3, "top_k": 2, "frequency_penalty": 1.0, "repetition_penalty": 2.0}
    requests = [
        request_with(logprobs=3, **options),
        request_with(),
        request_with(temperature=0.0, logprobs=0),
    ]
    drafts = [chain(logits[:2].argmax(dim=-1).numpy()), NO_DRAFT, NO_DRAFT]
    with_top, without, chosen_only = verify(logits, requests, drafts)

    assert torch.equal(logits, before)
    assert without.logprobs is None
    assert len(with_top.logprobs) == len(with_top.emitted_token_ids)
    for row, (token_id, record) in enumerate(
        zip(with_top.emitted_token_ids, with_top.logprobs, strict=True)
    ):
        top = expected[row].topk(3)
        assert record.logprob == pytest.approx(expected[row, token_id].item(), abs=1e-5)
        assert record.top_token_ids == tuple(top.indices.tolist())
        assert record.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-5)
    (record,) = chosen_only.logprobs
    assert record.logprob == pytest.approx(expected[4].max().item(), abs=1e-5)
    assert record.top_token_ids == () and record.top_logprobs == ()


def test_logprobs_of_a_tree_are_those_of_the_path():
    params = SamplingParams(temperature=0.0, logprobs=2, max_tokens=8)
    plain, request = Request(0, [3], params, seed=0), Request(0, [3], params, seed=0)
    expected = []
    for _ in range(2):
        (result,) = verify(model_logits([plain], [NO_DRAFT]), [plain], [NO_DRAFT])
        plain.append(result.emitted_token_ids)
        expected += result.logprobs
    right = int(plain.output_token_ids[0])
    tree = tree_of([(right + 1) % VOCABULARY, right], [-1, -1])
    (result,) = verify(model_logits([request], [tree]), [request], [tree])
    assert result.accepted_nodes == (1,) and [*result.logprobs] == expected


BAD_VALUES = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("bad_value", BAD_VALUES)
@pytest.mark.parametrize("bad_position", [0, 1, 3])
def test_bad_logits_end_their_request_where_they_are_and_no_other(bad_value, bad_position):
    """Greedy, sampled, filtered, penalised; drafts of every kind that are right until they meet the
    bad row."""
    requests = mixed_requests()
    good = [NO_DRAFT] * len(requests)
    for _ in range(3):  # what plain decoding emits, token by token
        results = verify(model_logits(requests, good), requests, good)
        good = [chain(result.emitted_token_ids) for result in results]
    certain = [replace(draft, probs=torch.eye(VOCABULARY)[draft.token_ids]) for draft in good]
    logits = model_logits(requests, good)
    for i, request in enumerate(requests):
        for drafts in (good, certain):
            expected = verify(logits, requests, drafts)
            spoiled = logits.clone()
            spoiled[4 * i + bad_position] = bad_value
            results = verify(spoiled, requests, drafts)
            assert [r for j, r in enumerate(results) if j != i] == [
                r for j, r in enumerate(expected) if j != i
            ]
            if expected[i].num_accepted < bad_position:
                assert results[i] == expected[i], (
                    "a drawn draft was rejected before: the bad row is not read"
                )
                continue
            assert results[i].emitted_token_ids == good[i].paths[bad_position]
            assert results[i].num_accepted == bad_position
            assert (
                f"output token {request.num_output_tokens + bad_position} are NaN or infinite"
                in results[i].error
            )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rules_that_leave_no_token_are_the_callers_and_bad_logits_are_not(temperature):
    rules = {
        "allowed_token_ids": (17,),
        "bad_words_token_ids": ((17,),),
        "temperature": temperature,
    }
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    logits[1, 30] = float("nan")
    requests = [request_with(**rules), request_with(**rules), request_with(temperature=temperature)]
    left, bad, good = verify(logits, requests, [NO_DRAFT] * 3)
    assert left.is_callers and "leave no token for output token" in left.error
    assert not bad.is_callers and "NaN" in bad.error
    assert good.error is None and not good.is_callers


@pytest.mark.parametrize("bad_value", BAD_VALUES)
def test_bad_draft_distributions_are_rejected_and_the_target_decides(bad_value):
    requests = [request_with(seed=i) for i in range(20)]
    draft_probs = torch.full((1, 8), bad_value).softmax(dim=-1)
    logits = torch.tensor([[-float("inf"), *[0.0] * 7], [0.0] * 8]).repeat(20, 1)
    for result in verify(logits, requests, [chain([0], probs=draft_probs)] * 20):
        assert (result.num_accepted, result.error) == (0, None)
        assert result.emitted_token_ids[0] > 0, "token 0 is impossible under the target"


def test_bfloat16_logits_are_verified_in_float32():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    requests = [request_with(seed=i, frequency_penalty=0.3, logprobs=1) for i in range(3)]
    results = verify(logits, requests, [NO_DRAFT] * 3)
    assert results == verify(logits.float(), requests, [NO_DRAFT] * 3)
