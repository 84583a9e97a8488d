"""The way from logits to the distribution a request is sampled from, and to a token of it.

Order, as in vLLM: rules on single tokens (logit_rules), penalties, temperature, min-p, top-k,
top-p. Verification compares draft tokens with exactly this distribution, so nothing else in the
engine may filter logits. Filters cut at a probability, so ties at the border stay: the result
depends neither on the rest of the batch nor on how a sort breaks ties.
"""

from collections.abc import Sequence

import numpy as np
import torch

from smartspec.core.batch import Draft
from smartspec.core.request import Request
from smartspec.engine.sampling.inverse_cdf import mass_of, sample_from_probs
from smartspec.engine.sampling.race import run_race
from smartspec.engine.sampling.randomness import DRAFT, PURPOSES, SAMPLE, fold_seed, uniform

# Ranks looked at before giving up and sorting the vocabulary; most nuclei are found in the first.
_TOP_WIDTHS = (256, 2048)
_TOP_GROUP = 8
NO_TOKEN = -1  # drawn from a row of logits that says nothing: NaN in it, or no finite largest value


def apply_penalties(
    logits: torch.Tensor,
    requests: Sequence[Request],
    first_rows: Sequence[int],
    drafts: Sequence[Draft],
) -> None:
    """Apply the penalties of requests to their rows in place.

    logits: float32 [N, V], contiguous. Request i has k_i+1 rows from first_rows[i] on, for its text
    and for each node of drafts[i]; a node's row is predicted after it and counts the path to it as
    output. Conventions of transformers and vLLM: the repetition penalty divides positive and
    multiplies negative logits of tokens in prompt or output; then frequency_penalty is subtracted
    per occurrence in the output and presence_penalty once.
    """
    vocabulary_size = logits.shape[-1]
    indices, scales, offsets = [], [], []
    for request, first_row, draft in zip(requests, first_rows, drafts, strict=True):
        token_ids, scale, offset = _penalties(request, draft)
        indices.append(
            ((first_row + np.arange(len(scale)))[:, None] * vocabulary_size + token_ids).ravel()
        )
        scales.append(scale.ravel())
        offsets.append(offset.ravel())
    index, scale, offset = (
        torch.from_numpy(np.concatenate(parts)).to(logits.device)
        for parts in (indices, scales, offsets)
    )
    flat_logits = logits.view(-1)
    values = flat_logits[index]
    flat_logits[index] = torch.where(values > 0, values / scale, values * scale) - offset


def _penalties(request: Request, draft: Draft) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct token ids [U]; what row j scales their logits by, and then subtracts: float32 [k+1,
    U] each."""
    params, num_prompt = request.params, request.num_prompt_tokens
    token_ids, columns = np.unique(
        np.concatenate([request.token_ids, draft.token_ids]), return_inverse=True
    )
    counts = np.zeros((len(draft) + 1, len(token_ids)), dtype=np.float32)
    counts[0] = np.bincount(columns[num_prompt : request.num_tokens], minlength=len(token_ids))
    for row, (parent, column) in enumerate(
        zip(draft.parents, columns[request.num_tokens :], strict=True), start=1
    ):
        counts[row] = counts[parent + 1]
        counts[row, column] += 1
    in_output = counts > 0
    seen = in_output.copy()
    seen[:, columns[:num_prompt]] = True
    scale = np.where(seen, np.float32(params.repetition_penalty), np.float32(1.0))
    offset = params.frequency_penalty * counts + params.presence_penalty * in_output
    return token_ids, scale, offset.astype(np.float32)


def filtered_probs(
    logits: torch.Tensor,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    min_p: np.ndarray,
) -> torch.Tensor:
    """The distribution each row is sampled from: float32 [N, V], rows sum to 1.

    logits: [N, V], already penalised. temperature: float [N], above 0. top_k: int [N], 0 or less
    for no limit. top_p: float [N], the smallest set of most likely tokens with at least this mass
    (of what min-p and top-k left) stays. min_p: float [N], tokens less than this share as likely as
    the best are dropped.
    """
    # Shifting first makes the best token exactly 0, so that even a vanishing temperature gives 0
    # and -inf, never NaN.
    scaled = logits.float() - logits.amax(dim=-1, keepdim=True)
    scaled /= _column(np.maximum(temperature, np.finfo(np.float32).tiny), scaled)
    probs = scaled.softmax(dim=-1)
    filtered = np.flatnonzero((top_k > 0) | (top_p < 1.0) | (min_p > 0.0))
    if filtered.size == len(probs):
        return _filter(probs, top_k, top_p, min_p)
    if filtered.size:
        probs[filtered] = _filter(
            probs[filtered], top_k[filtered], top_p[filtered], min_p[filtered]
        )
    return probs


def _filter(
    probs: torch.Tensor, top_k: np.ndarray, top_p: np.ndarray, min_p: np.ndarray
) -> torch.Tensor:
    threshold = probs.amax(dim=-1, keepdim=True) * _column(min_p, probs)
    if (top_k > 0).any() or (top_p < 1.0).any():
        threshold = _rank_threshold(probs, threshold, top_k, top_p)
    kept = torch.where(probs >= threshold, probs, 0.0)
    return kept.div_(mass_of(kept).float())


def _rank_threshold(
    probs: torch.Tensor, floor: torch.Tensor, top_k: np.ndarray, top_p: np.ndarray
) -> torch.Tensor:
    """Smallest probability [M, 1] that survives floor (min-p), top-k and top-p; sorts no more than
    it must."""
    vocabulary_size = probs.shape[-1]
    limits = _column(np.where(top_k < vocabulary_size, np.maximum(top_k, 0), 0), probs, torch.int64)
    nucleus = _column(top_p, probs, torch.float64)
    mass = mass_of(torch.where(probs >= floor, probs, 0.0))
    threshold = torch.empty_like(floor)
    rows = torch.arange(len(probs), device=probs.device)
    for width in (*_TOP_WIDTHS, vocabulary_size):
        largest = _largest(
            probs if len(rows) == len(probs) else probs[rows], min(width, vocabulary_size)
        )
        threshold[rows], decided = _threshold_among(
            largest, floor[rows], limits[rows], nucleus[rows], mass[rows]
        )
        rows = rows[~decided.squeeze(1)]
        if width >= vocabulary_size or not len(rows):
            break
    return threshold


def _largest(probs: torch.Tensor, width: int) -> torch.Tensor:
    """The width largest of each row, descending: probs.topk(width).values, but two to three times
    as fast on a CPU.

    They lie in at most width of the row's groups of 8, those with the largest maxima.
    """
    num_groups = probs.shape[-1] // _TOP_GROUP
    if width >= num_groups:
        return probs.topk(width).values
    groups = probs[:, : num_groups * _TOP_GROUP].unflatten(-1, (_TOP_GROUP, num_groups))
    best_groups = groups.amax(dim=1).topk(width, sorted=False).indices
    members = groups.gather(2, best_groups.unsqueeze(1).expand(-1, _TOP_GROUP, -1)).flatten(1)
    return torch.cat([members, probs[:, num_groups * _TOP_GROUP :]], dim=-1).topk(width).values


def _threshold_among(
    largest: torch.Tensor,
    floor: torch.Tensor,
    limits: torch.Tensor,
    nucleus: torch.Tensor,
    mass: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Threshold [M, 1] judged from each row's W largest probabilities [M, W], and whether W was
    enough, bool [M, 1].

    limits: top-k, 0 for none. mass: of all tokens that survive floor.
    """
    width = largest.shape[-1]
    limited = (limits > 0) & (limits <= width)
    kth_largest = largest.gather(1, limits.clamp(1, width) - 1)
    floor = torch.where(limited, torch.maximum(floor, kth_largest), floor)
    weights = torch.where(largest >= floor, largest, 0.0).double()
    mass = torch.where(limited, mass_of(weights), mass)
    num_kept = ((weights > 0) & (weights.cumsum(dim=-1) - weights < nucleus * mass)).sum(
        dim=-1, keepdim=True
    )
    border = largest.gather(1, num_kept.clamp(min=1) - 1)
    threshold = torch.where(nucleus < 1.0, border, floor)
    # Above the least value seen, all ties of a border are among those seen: a wider look would
    # change nothing.
    least = largest[:, -1:]
    return threshold, (floor > least) | ((limits == 0) & ((threshold > least) | (nucleus == 1.0)))


def draw_tokens(
    logits: torch.Tensor, requests: Sequence[Request], positions: np.ndarray, purpose: int
) -> tuple[torch.Tensor, np.ndarray, torch.Tensor | None]:
    """Draw one token per row as its request wants it: token ids int64 [N], on the device of logits.

    logits: [N, V], already penalised. requests: N, one per row. positions: int64 [N], index in the
    request's text of the token to draw. purpose: see randomness; the target's own tokens, SAMPLE,
    are drawn by a race. Greedy rows take the largest logit, the first on a tie. A row with NaN,
    +inf or nothing but -inf gives NO_TOKEN. Also returns the row numbers int64 [S] of the rows that
    were sampled and their distributions [S, V] (None if there are none).
    """
    sampled = np.flatnonzero([not request.params.greedy for request in requests])
    if not sampled.size:
        return _best_tokens(logits), sampled, None
    all_sampled = sampled.size == len(requests)
    sampled_requests = [requests[row] for row in sampled]
    probs = filtered_probs(logits if all_sampled else logits[sampled], *_filters(sampled_requests))
    if purpose == SAMPLE:
        drawn = run_race(probs, seeds_of(sampled_requests), positions[sampled])
    else:
        drawn = sample_from_probs(
            probs, request_uniform(sampled_requests, positions[sampled], purpose)
        )
    # The softmax of a bad row is NaN everywhere, and so is what the filters leave of it.
    drawn = torch.where(probs[:, 0].isnan(), NO_TOKEN, drawn)
    if all_sampled:
        return drawn, sampled, probs
    token_ids = _best_tokens(logits)
    token_ids[sampled] = drawn
    return token_ids, sampled, probs


def _best_tokens(logits: torch.Tensor) -> torch.Tensor:
    """The largest logit of each row, int64 [N], or NO_TOKEN. NaN counts as largest, so looking at
    that one tells."""
    # numpy looks at them 6 to 12 times as fast
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        numbers = logits.numpy()
        best = numbers.argmax(axis=-1)
        largest = numbers[np.arange(len(best)), best]
        return torch.from_numpy(np.where(np.isfinite(largest), best, NO_TOKEN))
    token_ids = logits.argmax(dim=-1)
    largest = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    return torch.where(largest.isfinite(), token_ids, NO_TOKEN)


def sample_draft(
    logits: torch.Tensor, requests: Sequence[Request], depth: int
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """One draft token per request from the draft model's logits [N, V]: token ids int64 [N], on the
    device.

    depth: draft tokens of this step between the text and the token, which is in the key of the
    random number, so that no step draws with a number of another (see randomness). Also returns,
    per request, the distribution [V] its token was drawn from, or None for a greedy request, whose
    draft is deterministic. The request's temperature and filters apply, which raises acceptance;
    its penalties do not, which only costs some. Of bad logits token 0 is drafted, and verification
    rejects it if it was drawn.
    """
    positions = np.array([request.num_tokens + depth for request in requests], dtype=np.int64)
    token_ids, sampled, probs = draw_tokens(logits, requests, positions, DRAFT + PURPOSES * depth)
    token_ids = token_ids.clamp(min=0)
    draft_probs: list[torch.Tensor | None] = [None] * len(requests)
    for index, row in enumerate(sampled):
        draft_probs[row] = probs[index]
    return token_ids, draft_probs


def request_uniform(requests: Sequence[Request], positions: np.ndarray, purpose: int) -> np.ndarray:
    """randomness.uniform with the seeds of requests: float64 [N]."""
    return uniform(seeds_of(requests), positions, purpose)


def seeds_of(requests: Sequence[Request]) -> np.ndarray:
    """int64 [N]."""
    return np.array([fold_seed(request.seed) for request in requests], dtype=np.int64)


def _filters(requests: Sequence[Request]) -> list[np.ndarray]:
    """temperature, top_k, top_p, min_p, each [N]."""
    names = ("temperature", "top_k", "top_p", "min_p")
    return [np.array([getattr(request.params, name) for request in requests]) for name in names]


def _column(
    values: np.ndarray, like: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values)).to(like.device, dtype).unsqueeze(1)
