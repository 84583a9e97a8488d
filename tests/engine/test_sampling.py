import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from markov_model import reference_probs

from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.sampling.randomness import SAMPLE
from smartspec.engine.sampling.sampler import (
    apply_penalties,
    draw_tokens,
    filtered_probs,
    sample_draft,
    sample_from_probs,
)

BELOW_ONE = np.nextafter(1.0, 0.0)


def filtered(logits: np.ndarray, rows: list[SamplingParams]) -> torch.Tensor:
    columns = [[getattr(row, name) for row in rows] for name in ("temperature", "top_k", "top_p", "min_p")]
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
    """Spread 0.01 is nearly flat: its nuclei hold thousands of tokens, so that every width of the search is used."""
    random = np.random.default_rng(vocabulary_size)
    logits = random.normal(0, spread, (len(FILTERS), vocabulary_size)).astype(np.float32)
    probs = filtered(logits, FILTERS).numpy()
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-5)
    for row, params in enumerate(FILTERS):
        expected = reference_probs(logits[row], params, [], [])
        extra, missing = (probs[row] > 0) & (expected == 0), (probs[row] == 0) & (expected > 1e-30)
        assert not extra.any() and not missing.any()
        np.testing.assert_allclose(probs[row], expected, rtol=1e-3, atol=1e-6)


def test_a_row_does_not_depend_on_the_other_rows():
    logits = np.random.default_rng(0).normal(0, 2, (len(FILTERS), 5000)).astype(np.float32)
    together = filtered(logits, FILTERS)
    for row, params in enumerate(FILTERS):
        assert torch.equal(filtered(logits[row : row + 1], [params])[0], together[row])


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-40, 1e-300])
def test_vanishing_temperature_is_the_best_token_and_never_nan(temperature):
    logits = np.array([[3.0, 9000.0, 8999.5, -8000.0]], dtype=np.float32)
    assert filtered(logits, [SamplingParams(temperature=temperature)]).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_ties_at_the_border_stay_and_banned_tokens_do_not_come_back():
    logits = np.array([[*np.log([0.4, 0.2, 0.2, 0.2]), -np.inf]], dtype=np.float32)
    expected = torch.tensor([[0.4, 0.2, 0.2, 0.2, 0.0]])
    torch.testing.assert_close(filtered(logits, [SamplingParams(top_k=2)]), expected)
    torch.testing.assert_close(filtered(logits, [SamplingParams(top_p=0.5)]), expected)
    torch.testing.assert_close(filtered(logits, [SamplingParams(top_k=5, top_p=0.9999)]), expected)


def test_ties_that_reach_past_the_first_look_count_in_full():
    """20 tokens of weight 10, then 1000 of weight 1 that tie at the border of top-k: 1200 in all."""
    logits = np.full((1, 5000), -20.0, dtype=np.float32)
    logits[0, ::5] = 0.0
    logits[0, 1:100:5] = np.log(10)
    assert (filtered(logits, [SamplingParams(top_k=30)]) > 0).sum() == 1020
    assert (filtered(logits, [SamplingParams(top_k=30, top_p=0.4)]) > 0).sum() == 1020
    assert (filtered(logits, [SamplingParams(top_k=30, top_p=0.1)]) > 0).sum() == 20


def test_min_p_narrows_what_the_nucleus_is_measured_on():
    logits = np.log(np.array([[0.5, 0.2, 0.2, 0.1]], dtype=np.float32))
    with_both = filtered(logits, [SamplingParams(min_p=0.3, top_p=0.55)])
    # Without the last token the first has 5/9, which already is 0.55 of the mass.
    assert with_both.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert (filtered(logits, [SamplingParams(top_p=0.55)]) > 0).sum() == 3


@pytest.mark.parametrize("vocabulary_size", [3, 256, 257, 1000])
def test_inverse_cdf_agrees_with_searchsorted(vocabulary_size):
    random = np.random.default_rng(1)
    probs = torch.from_numpy(random.dirichlet(np.full(vocabulary_size, 0.3), 400).astype(np.float32))
    u = random.random(400)
    cumulated = probs.double().numpy().cumsum(axis=1)
    expected = [np.searchsorted(row, value * row[-1], side="right") for row, value in zip(cumulated, u, strict=True)]
    assert sample_from_probs(probs, u).tolist() == expected


@given(
    masses=st.lists(st.sampled_from([0.0, 1e-30, 1e-8, 0.1, 1 / 3, 1.0]), min_size=1, max_size=600).filter(any),
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
    # A draw belongs to the interval it begins: u < 0.5 is the first token, so that it has exactly half of them.
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
def test_penalties_count_the_draft_tokens_before_each_row(prompt, output, draft, repetition, presence, frequency):
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency, max_tokens=20
    )
    request = Request(0, prompt, params, seed=0)
    request.append(output)
    logits = np.random.default_rng(3).normal(0, 2, (len(draft) + 1, 7)).astype(np.float32)
    penalised = torch.from_numpy(np.concatenate([logits[:1], logits, logits[:1]]))
    apply_penalties(penalised, [request], [1], [np.array(draft, dtype=np.int32)])
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


def test_draft_tokens_of_sampled_requests_come_with_their_distributions():
    params = [SamplingParams(temperature=0.0), SamplingParams(top_k=2, presence_penalty=2.0)]
    requests = [Request(i, [1], each, seed=5) for i, each in enumerate(params)]
    logits = torch.tensor([[0.0, 1.0, 3.0], [2.0, 1.0, 0.0]])
    token_ids, draft_probs = sample_draft(logits, requests, np.array([1, 1]))
    assert token_ids[0] == 2 and draft_probs[0] is None
    expected = reference_probs([2.0, 1.0, 0.0], SamplingParams(top_k=2), [], [])
    np.testing.assert_allclose(draft_probs[1], expected, rtol=1e-5)
    assert draft_probs[1][token_ids[1]] > 0
