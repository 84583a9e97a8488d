"""Two small target models, decoding with them through verify, and the distributions written down
naively."""

from collections.abc import Callable

import numpy as np
import torch

from smartspec.core.batch import NO_DRAFT, Draft
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.sampling.verification import verify

PROMPT = [0, 2, 1]
Drafter = Callable[[list[Request]], list[Draft]]


def make_requests(num: int, **params) -> list[Request]:
    sampling_params = SamplingParams(**params)
    return [Request(i, PROMPT, sampling_params, seed=1_000_003 * i) for i in range(num)]


def markov_logits(table: np.ndarray, requests: list[Request], drafts: list[Draft]) -> torch.Tensor:
    """Rows of a model that sees only the last token: table is [V, V], logits by last token."""
    last = [
        np.append(request.token_ids[-1:], draft.token_ids)
        for request, draft in zip(requests, drafts, strict=True)
    ]
    return torch.from_numpy(table[np.concatenate(last)])


def no_drafts(requests: list[Request]) -> list[Draft]:
    return [NO_DRAFT] * len(requests)


def decode(logits_of: Callable, requests: list[Request], drafter: Drafter = no_drafts):
    """Decode all requests to their max_tokens. logits_of: takes requests and drafts.

    Returns the outputs int [R, max_tokens] and the accepted and verified draft tokens of all steps.
    """
    num_accepted = num_drafted = 0
    running = list(requests)
    while running:
        drafts = drafter(running)
        results = verify(logits_of(running, drafts), running, drafts)
        for request, draft, result in zip(running, drafts, results, strict=True):
            nodes = result.accepted_nodes or range(result.num_accepted)
            assert len(result.emitted_token_ids) == result.num_accepted + 1 == len(nodes) + 1
            assert result.emitted_token_ids[:-1] == draft.paths[max(nodes, default=-1) + 1]
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
    """Of a chi-square statistic."""
    return float(torch.special.gammaincc(*torch.tensor([freedom / 2, statistic / 2]).double()))


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
