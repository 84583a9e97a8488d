"""Lossless verification: which draft tokens the target accepts, and the token it emits behind them.

Every row of logits gets the target's own token, drawn with the random number of its position. Greedy targets and
deterministic drafts accept while draft token and own token agree. For a point-mass draft that is the rule of Leviathan
et al. (2023, algorithm 1) with one random number instead of two, and what is emitted is, token for token, what plain
decoding emits with the same seed. Drafts drawn from draft_probs take the rule itself, which accepts more of them; they
keep the target's distribution, not its tokens. Plain decoding is verification of no draft tokens.
"""

from collections.abc import Sequence

import numpy as np
import torch

from smartspec.core.batch import TokenLogprobs, Verification
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.sampling.logit_rules import apply_logit_rules
from smartspec.engine.sampling.logprobs import token_logprobs
from smartspec.engine.sampling.randomness import ACCEPT, SAMPLE
from smartspec.engine.sampling.sampler import NO_TOKEN, apply_penalties, draw_tokens, request_uniform, sample_from_probs


def verify(
    logits: torch.Tensor,
    requests: Sequence[Request],
    draft_token_ids: Sequence[np.ndarray],
    draft_probs: Sequence[torch.Tensor | None],
) -> list[Verification]:
    """Verify the drafts of a step: one Verification per request.

    logits: [sum(k_i + 1), V], the rows of all requests one behind the other; row j of a request is the target's
    prediction behind its committed text and its first j draft tokens. Not modified. draft_token_ids: int [k_i] each.
    draft_probs: [k_i, V] each, the distributions the draft tokens were drawn from, or None where they were not drawn.
    A request whose next token would come from NaN or infinite logits gets an error instead of it.
    """
    if not requests:
        return []
    rows = _Rows(requests, draft_token_ids)
    assert len(logits) == len(rows.requests), f"{len(logits)} rows of logits, expected {len(rows.requests)}"
    penalised = _penalised(logits, rows, requests, draft_token_ids)
    tokens, sampled, target_probs = draw_tokens(penalised, rows.requests, rows.positions, SAMPLE)
    token_ids = tokens.cpu().numpy()
    accepted = (token_ids == rows.draft_token_ids) & (token_ids != NO_TOKEN)
    drawn = [i for i, probs in enumerate(draft_probs) if probs is not None and not requests[i].params.greedy]
    if not drawn:
        return _verifications(logits, rows, requests, rows.first_rejected(accepted), token_ids)

    drawn_rows = np.concatenate([np.arange(rows.starts[i], rows.ends[i]) for i in drawn])
    drawn_target_probs = target_probs[np.searchsorted(sampled, drawn_rows)]
    drawn_draft_probs = torch.cat([draft_probs[i] for i in drawn])
    accepted[drawn_rows] = _accept_drawn(drawn_target_probs, drawn_draft_probs, rows, drawn_rows)
    stops = rows.first_rejected(accepted)
    rejected = np.flatnonzero(np.isin(drawn_rows, stops) & (token_ids[drawn_rows] != NO_TOKEN))
    token_ids[drawn_rows[rejected]] = _recover_tokens(
        drawn_target_probs[rejected], drawn_draft_probs[rejected], rows, drawn_rows[rejected]
    )
    return _verifications(logits, rows, requests, stops, token_ids)


class _Rows:
    """The rows of a step, N in all: request i has rows starts[i] to ends[i], both included.

    requests: of each row. positions: int64 [N], index in the request's text of the token a row predicts.
    draft_token_ids: int64 [N], the draft token at that position, -1 in a request's last row, which has none.
    """

    def __init__(self, requests: Sequence[Request], draft_token_ids: Sequence[np.ndarray]):
        lengths = np.array([len(draft) for draft in draft_token_ids], dtype=np.int64)
        self.ends = np.cumsum(lengths + 1) - 1
        self.starts = self.ends - lengths
        owners = np.repeat(np.arange(len(requests)), lengths + 1)
        num_tokens = np.array([request.num_tokens for request in requests], dtype=np.int64)
        self.requests = [requests[owner] for owner in owners]
        self.positions = num_tokens[owners] + np.arange(len(owners)) - self.starts[owners]
        self.draft_token_ids = np.full(len(owners), -1, dtype=np.int64)
        has_draft = np.ones(len(owners), dtype=bool)
        has_draft[self.ends] = False
        self.draft_token_ids[has_draft] = np.concatenate(draft_token_ids)

    def first_rejected(self, accepted: np.ndarray) -> np.ndarray:
        """Row int64 [R] in which each request stops: its first that is not accepted, at the latest its last."""
        not_accepted = np.flatnonzero(~accepted)
        return not_accepted[np.searchsorted(not_accepted, self.starts)]


def _penalised(
    logits: torch.Tensor, rows: _Rows, requests: Sequence[Request], draft_token_ids: Sequence[np.ndarray]
) -> torch.Tensor:
    """The logits themselves where no request has rules or penalties, else a copy with both applied."""
    ruled = [i for i, request in enumerate(requests) if request.params.has_logit_rules]
    wanted = [i for i, request in enumerate(requests) if request.params.has_penalties]
    if not ruled and not wanted:
        return logits
    penalised = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    for apply, chosen in ((apply_logit_rules, ruled), (apply_penalties, wanted)):
        if chosen:
            apply(penalised, [requests[i] for i in chosen], rows.starts[chosen], [draft_token_ids[i] for i in chosen])
    return penalised


def _accept_drawn(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, rows: _Rows, drawn_rows: np.ndarray
) -> np.ndarray:
    """Accept with probability min(1, target_probs / draft_probs) of the draft token, bool [D]; never at draft prob 0.

    target_probs, draft_probs: [D, V], of the rows numbered drawn_rows.
    """
    token_ids = torch.from_numpy(rows.draft_token_ids[drawn_rows]).to(target_probs.device).unsqueeze(1)
    target_prob = target_probs.gather(1, token_ids).squeeze(1).double().cpu().numpy()
    draft_prob = draft_probs.gather(1, token_ids).squeeze(1).double().cpu().numpy()
    requests = [rows.requests[row] for row in drawn_rows]
    u = request_uniform(requests, rows.positions[drawn_rows], ACCEPT)
    return (draft_prob > 0) & (u * draft_prob < target_prob)


def _recover_tokens(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, rows: _Rows, rejected_rows: np.ndarray
) -> np.ndarray:
    """Draw from norm(max(target_probs - draft_probs, 0)), int64 [D]; from target_probs where rounding left nothing."""
    residual = (target_probs - draft_probs).clamp_(min=0)
    residual = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, target_probs)
    requests = [rows.requests[row] for row in rejected_rows]
    u = request_uniform(requests, rows.positions[rejected_rows], SAMPLE)
    return sample_from_probs(residual, u).cpu().numpy()


def _verifications(
    logits: torch.Tensor, rows: _Rows, requests: Sequence[Request], stops: np.ndarray, token_ids: np.ndarray
) -> list[Verification]:
    """Records of a step: request i accepts the drafts before row stops[i] and emits token_ids[stops[i]] behind them."""
    num_accepted = (stops - rows.starts).tolist()
    own = token_ids[stops]
    emitted = [
        (*rows.draft_token_ids[start:stop].tolist(), *([token] if token != NO_TOKEN else ()))
        for start, stop, token in zip(rows.starts, stops, own.tolist(), strict=True)
    ]
    errors: list[str | None] = [None] * len(requests)
    for i in np.flatnonzero(own == NO_TOKEN):
        errors[i] = _no_token(int(rows.positions[stops[i]]) - requests[i].num_prompt_tokens, requests[i].params)
    logprobs = _emitted_logprobs(logits, rows, requests, emitted)
    return [Verification(*record) for record in zip(emitted, num_accepted, logprobs, errors, strict=True)]


def _no_token(output_position: int, params: SamplingParams) -> str:
    rules = "allowed_token_ids, bad_words and min_tokens leave no token; or " if params.has_logit_rules else ""
    return (
        f"the model's logits for output token {output_position} are NaN or infinite: {rules}its weights are damaged, "
        "or its numbers overflow (start with --dtype float32)"
    )


def _emitted_logprobs(
    logits: torch.Tensor, rows: _Rows, requests: Sequence[Request], emitted: Sequence[tuple[int, ...]]
) -> list[tuple[TokenLogprobs, ...] | None]:
    """Logprobs of every emitted token of the requests that asked for them, None for the others."""
    wanted = [i for i, request in enumerate(requests) if request.params.logprobs is not None and emitted[i]]
    if not wanted:
        return [None] * len(requests)
    wanted_rows = np.concatenate([rows.starts[i] + np.arange(len(emitted[i])) for i in wanted])
    token_ids = np.concatenate([np.array(emitted[i], dtype=np.int64) for i in wanted])
    num_top = [rows.requests[row].params.logprobs for row in wanted_rows]
    records = iter(token_logprobs(logits[wanted_rows], token_ids, num_top))
    logprobs: list[tuple[TokenLogprobs, ...] | None] = [None] * len(requests)
    for i in wanted:
        logprobs[i] = tuple(next(records) for _ in emitted[i])
    return logprobs
