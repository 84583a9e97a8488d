"""Two small target models, decoding with them through verify, and the distributions written down
naively."""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import torch

from smartspec.core.batch import chain
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.sampling.verification import verify

PROMPT = [0, 2, 1]
# Takes requests and lengths, returns draft token ids and draft probs, both per request.
Drafter = Callable[[list[Request], np.ndarray], tuple[list[np.ndarray], list[torch.Tensor | None]]]


def make_requests(num: int, **params) -> list[Request]:
    sampling_params = SamplingParams(**params)
    return [Request(i, PROMPT, sampling_params, seed=1_000_003 * i) for i in range(num)]


def markov_logits(
    table: np.ndarray, requests: list[Request], drafts: list[np.ndarray]
) -> torch.Tensor:
    """Rows of a model that sees only the last token: table is [V, V], logits by last token."""
    last = [
        np.concatenate([request.token_ids[-1:], draft])
        for request, draft in zip(requests, drafts, strict=True)
    ]
    return torch.from_numpy(table[np.concatenate(last)])


def verify_chains(logits, requests, draft_token_ids, draft_probs):
    """verify() of drafts that are chains; draft_token_ids, draft_probs: of each request."""
    pairs = zip(draft_token_ids, draft_probs, strict=True)
    return verify(logits, requests, [chain(token_ids, probs=probs) for token_ids, probs in pairs])


def decode(
    logits_of: Callable,
    requests: list[Request],
    drafter: Drafter | None,
    max_draft: int = 3,
    seed: int = 0,
):
    """Decode all requests to their max_tokens, with a new random draft length per request and step.

    Returns the outputs int [R, max_tokens] and the accepted and verified draft tokens of all steps.
    """
    random = np.random.default_rng(seed)
    num_accepted = num_drafted = 0
    running = list(requests)
    while running:
        lengths = random.integers(0, max_draft + 1, len(running))
        none = [np.empty(0, dtype=np.int32)] * len(running), [None] * len(running)
        drafts, draft_probs = drafter(running, lengths) if drafter else none
        results = verify_chains(logits_of(running, drafts), running, drafts, draft_probs)
        for request, draft, result in zip(running, drafts, results, strict=True):
            assert len(result.emitted_token_ids) == result.num_accepted + 1
            assert result.emitted_token_ids[:-1] == tuple(draft[: result.num_accepted])
            request.append(result.emitted_token_ids)
            num_accepted += result.num_accepted
            num_drafted += len(draft)
        running = [request for request in running if request.finish_reason is None]
    return np.stack([request.output_token_ids for request in requests]), num_accepted, num_drafted


def reference_probs(logits: np.ndarray, params: SamplingParams, prompt, output) -> np.ndarray:
    """The distribution of the next token, float64 [V], as one would explain it: loops and sorts."""
    logits = np.array(logits, dtype=np.float64)
    if params.allowed_token_ids:
        logits[
            [token_id not in params.allowed_token_ids for token_id in range(len(logits))]
        ] = -np.inf
    for word in params.bad_words_token_ids:
        if [*output][len(output) - len(word) + 1 :] == [*word[:-1]]:
            logits[word[-1]] = -np.inf
    for token_id, bias in params.logit_bias:
        logits[token_id] += bias
    for token_id in set(prompt) | set(output):
        scale = params.repetition_penalty
        logits[token_id] = (
            logits[token_id] / scale if logits[token_id] > 0 else logits[token_id] * scale
        )
    for token_id in set(output):
        logits[token_id] -= (
            params.frequency_penalty * list(output).count(token_id) + params.presence_penalty
        )
    probs = np.exp((logits - logits.max()) / params.temperature)
    probs /= probs.sum()
    probs[probs < params.min_p * probs.max()] = 0
    ranked = np.argsort(-probs)
    if params.top_k > 0:
        probs[ranked[params.top_k :]] = 0
    if params.top_p < 1:
        probs /= probs.sum()
        before = np.cumsum(probs[ranked]) - probs[ranked]
        probs[ranked[before >= params.top_p]] = 0
    return probs / probs.sum()


def pair_probs(table: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probability of the first two output tokens, [V, V]."""
    first = reference_probs(table[PROMPT[-1]], params, PROMPT, [])
    second = [
        reference_probs(table[token_id], params, PROMPT, [token_id])
        for token_id in range(len(table))
    ]
    return first[:, None] * np.array(second)


def p_value(statistic: float, freedom: int) -> float:
    """Of a chi-square statistic, by Wilson and Hilferty's cube root (1931)."""
    spread = 2 / (9 * freedom)
    return 1 - NormalDist().cdf(((statistic / freedom) ** (1 / 3) - 1 + spread) / spread**0.5)


def p_of_fit(counts: np.ndarray, probs: np.ndarray) -> float:
    """Of counts, were they drawn from the distribution probs, of the same shape."""
    possible, expected = probs > 0, counts.sum() * probs
    assert not counts[~possible].any()
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    return p_value(float(statistic), int(possible.sum()) - 1)


def p_of_pairs(outputs: np.ndarray, table: np.ndarray, params: SamplingParams) -> float:
    """Of the first two tokens, int [n, 2], were they drawn from the model of this table."""
    size = len(table)
    counts = np.bincount(outputs[:, 0] * size + outputs[:, 1], minlength=size**2)
    return p_of_fit(counts.reshape(size, size), pair_probs(table, params))
