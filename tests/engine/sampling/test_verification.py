import numpy as np
import pytest
import torch
from markov_model import decode, verify_chains

from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams

VOCABULARY = 20
NUM_TOKENS = 24
NONE = np.empty(0, dtype=np.int32)
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
    rows = []
    for request, draft in zip(requests, drafts, strict=True):
        text = [*request.token_ids, *draft]
        rows += [prefix_logits(text[: request.num_tokens + j]) for j in range(len(draft) + 1)]
    return torch.from_numpy(np.stack(rows))


def mixed_requests() -> list[Request]:
    return [
        Request(i, [3, i % VOCABULARY, 1], params, seed=2**70 - i)
        for i, params in enumerate(PARAMS * 3)
    ]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """Every request decoded alone and without drafts."""
    return [decode(model_logits, [request], None)[0][0].tolist() for request in mixed_requests()]


def oracle(plain, hits: float):
    """A drafter that proposes what plain decoding emits, each token spoiled with probability 1 -
    hits."""
    random = np.random.default_rng(5)

    def draft(requests, lengths):
        drafts = []
        for request, length in zip(requests, lengths, strict=True):
            right = np.array(
                plain[request.request_id][request.num_output_tokens :][:length], dtype=np.int32
            )
            spoiled = random.random(len(right)) >= hits
            drafts.append(np.where(spoiled, (right + 1) % VOCABULARY, right).astype(np.int32))
        return drafts, [None] * len(requests)

    return draft


@pytest.mark.parametrize("hits", [0.0, 0.3, 0.8, 1.0])
def test_deterministic_drafts_never_change_a_token(plain, hits):
    """Greedy and sampled requests in one batch, with penalties and filters, lengths changing every
    step."""
    outputs, num_accepted, num_drafted = decode(
        model_logits, mixed_requests(), oracle(plain, hits), max_draft=6
    )
    assert outputs.tolist() == plain
    assert num_drafted > 0
    if hits in (0.0, 1.0):
        assert num_accepted == hits * num_drafted


def test_greedy_requests_keep_their_tokens_with_drawn_drafts_too(plain):
    greedy = [request for request in mixed_requests() if request.params.greedy]
    draft = oracle(plain, 0.5)

    def drawn(requests, lengths):
        drafts, _ = draft(requests, lengths)
        return drafts, [torch.full((len(each), VOCABULARY), 1 / VOCABULARY) for each in drafts]

    outputs, *_ = decode(model_logits, greedy, drawn)
    assert outputs.tolist() == [plain[request.request_id] for request in greedy]


def test_other_seeds_and_ties_make_a_difference(plain):
    """The equality above has power: a sampled output hangs on its seed, and greedy rows do have
    ties."""
    request = Request(2, [3, 2, 1], PARAMS[2], seed=1)
    assert decode(model_logits, [request], None)[0][0].tolist() != plain[2]
    rows = np.array([prefix_logits([3, 0, 1, *plain[0][:i]]) for i in range(NUM_TOKENS)])
    assert ((rows == rows.max(axis=1, keepdims=True)).sum(axis=1) > 1).any()


def request_with(seed=0, **params) -> Request:
    return Request(0, [1], SamplingParams(**params), seed=seed)


def test_greedy_accepts_up_to_the_first_difference_and_recovers_the_argmax():
    logits = torch.eye(4) * 5
    request = request_with(temperature=0.0)
    cases = {(0, 1, 2): ((0, 1, 2, 3), 3), (0, 3, 2): ((0, 1), 1), (2, 1, 2): ((0,), 0)}
    for draft, (emitted, num_accepted) in cases.items():
        (result,) = verify_chains(logits, [request], [draft], [None])
        assert result.emitted_token_ids == emitted and result.num_accepted == num_accepted
        assert result.logprobs is None


def test_a_row_of_a_mixed_batch_is_verified_as_if_alone():
    requests = mixed_requests()
    random = np.random.default_rng(0)
    drafts = [random.integers(0, VOCABULARY, i % 4, dtype=np.int32) for i in range(len(requests))]
    probs = [
        torch.from_numpy(random.dirichlet(np.ones(VOCABULARY), len(draft))).float()
        for draft in drafts
    ]
    probs = [None if i % 3 == 0 else each for i, each in enumerate(probs)]
    together = verify_chains(model_logits(requests, drafts), requests, drafts, probs)
    for request, draft, draft_probs, result in zip(requests, drafts, probs, together, strict=True):
        assert verify_chains(
            model_logits([request], [draft]), [request], [draft], [draft_probs]
        ) == [result]


def test_no_requests_and_empty_drafts_with_distributions():
    assert verify_chains(torch.empty(0, 4), [], [], []) == []
    request = request_with(seed=3)
    logits = torch.zeros(1, 4)
    plain = verify_chains(logits, [request], [NONE], [None])
    assert verify_chains(logits, [request], [NONE], [torch.empty(0, 4)]) == plain
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
    drafts = [logits[:2].argmax(dim=-1).numpy().astype(np.int32), NONE, NONE]
    with_top, without, chosen_only = verify_chains(logits, requests, drafts, [None] * 3)

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


BAD_VALUES = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("bad_value", BAD_VALUES)
@pytest.mark.parametrize("bad_position", [0, 1, 3])
def test_bad_logits_end_their_request_where_they_are_and_no_other(bad_value, bad_position):
    """Greedy, sampled, filtered, penalised; drafts of every kind that are right until they meet the
    bad row."""
    requests = mixed_requests()
    good_drafts = [()] * len(requests)
    for _ in range(3):  # what plain decoding emits, token by token
        rows = model_logits(requests, good_drafts)
        results = verify_chains(rows, requests, good_drafts, [None] * len(requests))
        good_drafts = [result.emitted_token_ids for result in results]
    certain = [torch.eye(VOCABULARY)[[*draft]] for draft in good_drafts]
    logits = model_logits(requests, good_drafts)
    for i, request in enumerate(requests):
        for probs in ([None] * len(requests), certain):
            expected = verify_chains(logits, requests, good_drafts, probs)
            spoiled = logits.clone()
            spoiled[4 * i + bad_position] = bad_value
            results = verify_chains(spoiled, requests, good_drafts, probs)
            assert [r for j, r in enumerate(results) if j != i] == [
                r for j, r in enumerate(expected) if j != i
            ]
            if expected[i].num_accepted < bad_position:
                assert results[i] == expected[i], (
                    "a drawn draft was rejected before: the bad row is not read"
                )
                continue
            assert results[i].emitted_token_ids == good_drafts[i][:bad_position]
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
    left, bad, good = verify_chains(logits, requests, [NONE] * 3, [None] * 3)
    assert left.is_callers and "leave no token for output token" in left.error
    assert not bad.is_callers and "NaN" in bad.error
    assert good.error is None and not good.is_callers


@pytest.mark.parametrize("bad_value", BAD_VALUES)
def test_bad_draft_distributions_are_rejected_and_the_target_decides(bad_value):
    requests = [request_with(seed=i) for i in range(20)]
    draft_probs = torch.full((1, 8), bad_value).softmax(dim=-1)
    logits = torch.tensor([[-float("inf"), *[0.0] * 7], [0.0] * 8]).repeat(20, 1)
    drafts = [np.zeros(1, dtype=np.int32)] * 20
    for result in verify_chains(logits, requests, drafts, [draft_probs] * 20):
        assert (result.num_accepted, result.error) == (0, None)
        assert result.emitted_token_ids[0] > 0, "token 0 is impossible under the target"


def test_bfloat16_logits_are_verified_in_float32():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    requests = [request_with(seed=i, frequency_penalty=0.3, logprobs=1) for i in range(3)]
    results = verify_chains(logits, requests, [NONE] * 3, [None] * 3)
    assert results == verify_chains(logits.float(), requests, [NONE] * 3, [None] * 3)
