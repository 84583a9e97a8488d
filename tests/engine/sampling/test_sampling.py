from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from markov_model import reference_probs

from smartspec.core.batch import NO_DRAFT, chain
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.sampling.inverse_cdf import sample_from_probs
from smartspec.engine.sampling.randomness import SAMPLE
from smartspec.engine.sampling.sampler import (
    NO_TOKEN,
    apply_penalties,
    draw_tokens,
    filtered_probs,
    sample_draft,
)

BELOW_ONE = np.nextafter(1.0, 0.0)


def filtered(logits: np.ndarray, rows: list[SamplingParams]) -> torch.Tensor:
    columns = [
        [getattr(row, name) for row in rows] for name in ("temperature", "top_k", "top_p", "min_p")
    ]
    return filtered_probs(torch.from_numpy(logits), *(np.array(column) for column in columns))


FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.4),
    SamplingParams(top_k=3),
    SamplingParams(top_k=1, temperature=2.0),
    SamplingParams(top_k=-1, top_p=0.7),
    SamplingParams(top_p=0.999),
    SamplingParams(top_p=1e-6),
    SamplingParams(min_p=0.2),
    SamplingParams(min_p=1.0),
    SamplingParams(top_k=300, top_p=0.95, temperature=1.7),
    SamplingParams(top_k=4, top_p=0.8, min_p=0.05, temperature=0.9),
    SamplingParams(top_p=0.6, min_p=0.1),
    SamplingParams(top_k=10**9, top_p=0.9),
]


@pytest.mark.parametrize("vocabulary_size", [5, 47, 3001, 20_000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_filters_agree_with_the_naive_definition(vocabulary_size, spread):
    """Spread 0.01 is nearly flat: its nuclei hold thousands of tokens, so that every width of the
    search is used."""
    random = np.random.default_rng(vocabulary_size)
    logits = random.normal(0, spread, (len(FILTERS), vocabulary_size)).astype(np.float32)
    probs = filtered(logits, FILTERS).numpy()
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-5)
    for row, params in enumerate(FILTERS):
        # fp32 may put a token on either side where the mass above it is top_p to within its
        # rounding.
        inner, outer = (
            reference_probs(
                logits[row], replace(params, top_p=min(params.top_p * factor, 1.0)), [], []
            )
            for factor in ((1 - 1e-6, 1 + 1e-6) if params.top_p < 1 else (1, 1))
        )
        extra, missing = (probs[row] > 0) & (outer == 0), (probs[row] == 0) & (inner > 1e-30)
        assert not extra.any() and not missing.any()
        np.testing.assert_allclose(probs[row][inner > 0], inner[inner > 0], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-40, 1e-300])
def test_vanishing_temperature_is_the_best_token_and_never_nan(temperature):
    logits = np.array([[3.0, 9000.0, 8999.5, -8000.0]], dtype=np.float32)
    assert filtered(logits, [SamplingParams(temperature=temperature)]).tolist() == [
        [0.0, 1.0, 0.0, 0.0]
    ]


def test_ties_at_the_border_stay_and_banned_tokens_do_not_come_back():
    logits = np.array([[*np.log([0.4, 0.2, 0.2, 0.2]), -np.inf]], dtype=np.float32)
    expected = torch.tensor([[0.4, 0.2, 0.2, 0.2, 0.0]])
    torch.testing.assert_close(filtered(logits, [SamplingParams(top_k=2)]), expected)
    torch.testing.assert_close(filtered(logits, [SamplingParams(top_p=0.5)]), expected)
    torch.testing.assert_close(filtered(logits, [SamplingParams(top_k=5, top_p=0.9999)]), expected)


def test_ties_that_reach_past_the_first_look_count_in_full():
    """20 tokens of weight 10, then 1000 of weight 1 that tie at the border of top-k: 1200 in
    all."""
    logits = np.full((1, 5000), -20.0, dtype=np.float32)
    logits[0, ::5] = 0.0
    logits[0, 1:100:5] = np.log(10)
    assert (filtered(logits, [SamplingParams(top_k=30)]) > 0).sum() == 1020
    assert (filtered(logits, [SamplingParams(top_k=30, top_p=0.4)]) > 0).sum() == 1020
    assert (filtered(logits, [SamplingParams(top_k=30, top_p=0.1)]) > 0).sum() == 20


@pytest.mark.parametrize("vocabulary_size", [3, 256, 257, 1000])
def test_inverse_cdf_agrees_with_searchsorted(vocabulary_size):
    random = np.random.default_rng(1)
    probs = torch.from_numpy(
        random.dirichlet(np.full(vocabulary_size, 0.3), 400).astype(np.float32)
    )
    u = random.random(400)
    cumulated = probs.double().numpy().cumsum(axis=1)
    expected = [
        np.searchsorted(row, value * row[-1], side="right")
        for row, value in zip(cumulated, u, strict=True)
    ]
    assert sample_from_probs(probs, u).tolist() == expected


@given(
    masses=st.lists(
        st.sampled_from([0.0, 1e-30, 1e-8, 0.1, 1 / 3, 1.0]), min_size=1, max_size=600
    ).filter(any),
    u=st.sampled_from([0.0, 5e-324, 1e-17, 0.5, 0.999999999, BELOW_ONE]) | st.floats(0, BELOW_ONE),
)
def test_a_token_without_probability_is_never_drawn(masses, u):
    probs = torch.tensor([masses], dtype=torch.float32)
    token_id = sample_from_probs(probs, np.array([u])).item()
    assert probs[0, token_id] > 0


def test_the_ends_of_the_unit_interval_reach_the_first_and_last_token_with_mass():
    probs = torch.zeros(2, 700)
    probs[:, [300, 310, 650]] = torch.tensor([0.1, 0.6, 0.3])
    assert sample_from_probs(probs, np.array([0.0, BELOW_ONE])).tolist() == [300, 650]
    # A draw belongs to the interval it begins: u < 0.5 is the first token, so that it has exactly
    # half of them.
    halves = torch.tensor([[0.5, 0.0, 0.5]] * 2)
    assert sample_from_probs(halves, np.array([np.nextafter(0.5, 0), 0.5])).tolist() == [0, 2]


@given(
    prompt=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    output=st.lists(st.integers(0, 6), max_size=6),
    draft=st.lists(st.integers(0, 6), max_size=4),
    repetition=st.sampled_from([0.5, 1.0, 1.3]),
    presence=st.sampled_from([-1.5, 0.0, 0.7]),
    frequency=st.sampled_from([-0.3, 0.0, 1.1]),
)
def test_penalties_count_the_draft_tokens_before_each_row(
    prompt, output, draft, repetition, presence, frequency
):
    params = SamplingParams(
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        max_tokens=20,
    )
    request = Request(0, prompt, params, seed=0)
    request.append(output)
    logits = np.random.default_rng(3).normal(0, 2, (len(draft) + 1, 7)).astype(np.float32)
    penalised = torch.from_numpy(np.concatenate([logits[:1], logits, logits[:1]]))
    apply_penalties(penalised, [request], [1], [chain(draft)])
    assert penalised[[0, -1]].tolist() == logits[[0, 0]].tolist()
    penalised = penalised[1:-1]
    probs = penalised.softmax(dim=-1).numpy()
    for row in range(len(draft) + 1):
        expected = reference_probs(logits[row], params, prompt, output + draft[:row])
        np.testing.assert_allclose(probs[row], expected, rtol=1e-4, atol=1e-6)


def test_greedy_takes_the_first_of_equal_logits():
    requests = [Request(0, [1], SamplingParams(temperature=0.0), seed=0) for _ in range(2)]
    logits = torch.tensor([[0.0, 2.0, 2.0, 2.0], [-1.0, -1.0, -1.0, -1.0]])
    token_ids, sampled, probs = draw_tokens(logits, requests, np.array([1, 1]), SAMPLE)
    assert token_ids.tolist() == [1, 0] and not len(sampled) and probs is None


NAN, INF = float("nan"), float("inf")
BAD_ROWS = ([0.0, 1.0, NAN], [NAN] * 3, [INF, 0.0, 0.0], [INF, -INF, NAN], [-INF] * 3)


@pytest.mark.parametrize("bad_row", BAD_ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bad_logits_give_no_token_and_leave_the_other_rows_alone(bad_row, dtype):
    """For every kind of sampling, each beside good rows of the same kind."""
    for params in [SamplingParams(temperature=0.0), *FILTERS]:
        requests = [Request(i, [1], params, seed=i) for i in range(3)]
        logits = torch.tensor([[0.0, 2.0, -INF], bad_row, [1.0, 0.0, 3.0]], dtype=dtype)
        expected, *_ = draw_tokens(logits[::2], requests[::2], np.array([1, 1]), SAMPLE)
        token_ids, *_ = draw_tokens(logits, requests, np.array([1, 1, 1]), SAMPLE)
        assert token_ids.tolist() == [expected[0], NO_TOKEN, expected[1]]
    mixed = [Request(i, [1], SamplingParams(temperature=i % 2), seed=i) for i in range(4)]
    logits = torch.tensor([bad_row, bad_row, [0.0, 2.0, 1.0], [-INF, 2.0, -INF]], dtype=dtype)
    token_ids, *_ = draw_tokens(logits, mixed, np.ones(4, dtype=np.int64), SAMPLE)
    assert token_ids.tolist() == [NO_TOKEN, NO_TOKEN, 1, 1]


@pytest.mark.parametrize("bad_row", BAD_ROWS)
def test_a_draft_of_bad_logits_is_a_token_all_the_same(bad_row):
    requests = [Request(i, [1], SamplingParams(temperature=i), seed=0) for i in range(2)]
    token_ids, _ = sample_draft(torch.tensor([bad_row, bad_row]), requests, depth=0)
    assert token_ids.tolist() == [0, 0]


@pytest.mark.parametrize("penalty", [0.01, 100.0])
def test_the_strongest_repetition_penalties_leave_numbers(penalty):
    requests = [Request(0, [0, 1], SamplingParams(repetition_penalty=penalty), seed=0)]
    logits = torch.tensor([[30_000.0, -30_000.0, 0.0]])
    apply_penalties(logits, requests, [0], [NO_DRAFT])
    assert logits.isfinite().all()
    assert draw_tokens(logits, requests, np.array([2]), SAMPLE)[0].item() != NO_TOKEN


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repetition_penalty": NAN}, "repetition_penalty must be in .* got nan"),
        ({"temperature": NAN}, "temperature must be in"),
        ({"presence_penalty": INF}, "presence_penalty must be in"),
    ],
)
def test_options_that_are_no_numbers_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        SamplingParams(**options)


def test_the_smallest_numbers_that_are_allowed_act_as_zero():
    """What float32 rounds to 0 (temperature has a floor, see above) does nothing, and makes no
    NaN."""
    logits = np.array([[0.0, 1.0, 2.0]], dtype=np.float32)
    tiny = SamplingParams(
        min_p=1e-300, presence_penalty=1e-300, frequency_penalty=-1e-300, max_tokens=5
    )
    request = Request(0, [0], tiny, seed=0)
    request.append([1])
    penalised = torch.from_numpy(logits.copy())
    apply_penalties(penalised, [request], [0], [NO_DRAFT])
    assert penalised.tolist() == logits.tolist()
    assert torch.equal(filtered(logits, [tiny]), filtered(logits, [SamplingParams()]))
    assert filtered(logits, [SamplingParams(top_p=5e-324)]).tolist() == [[0.0, 0.0, 1.0]]


def test_draft_tokens_of_sampled_requests_come_with_their_distributions():
    params = [SamplingParams(temperature=0.0), SamplingParams(top_k=2, presence_penalty=2.0)]
    requests = [Request(i, [1], each, seed=5) for i, each in enumerate(params)]
    logits = torch.tensor([[0.0, 1.0, 3.0], [2.0, 1.0, 0.0]])
    token_ids, draft_probs = sample_draft(logits, requests, depth=0)
    assert token_ids[0] == 2 and draft_probs[0] is None
    expected = reference_probs([2.0, 1.0, 0.0], SamplingParams(top_k=2), [], [])
    np.testing.assert_allclose(draft_probs[1], expected, rtol=1e-5)
    assert draft_probs[1][token_ids[1]] > 0
