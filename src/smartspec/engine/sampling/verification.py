"""Lossless verification: which draft tokens the target accepts, and the token it emits after them.

Every row of logits gets the target's own token, drawn with the random numbers of its position.
Greedy targets and deterministic drafts accept while draft token and own token agree: in a chain the
next token, in a tree the child that is that token. For a point-mass draft that accepts as often as
the rule of Leviathan et al. (2023, algorithm 1), and what is emitted is, token for token, what
plain decoding emits with the same seed. Chains drawn from distributions take the rule itself, which
accepts more of them; they keep the target's distribution, not its tokens. Plain decoding is
verification of no draft tokens.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from smartspec.core.batch import Draft, TokenLogprobs, Verification
from smartspec.core.request import Request
from smartspec.engine.sampling.logit_rules import apply_logit_rules
from smartspec.engine.sampling.logprobs import token_logprobs
from smartspec.engine.sampling.randomness import ACCEPT, SAMPLE
from smartspec.engine.sampling.sampler import (
    NO_TOKEN,
    apply_penalties,
    draw_tokens,
    request_uniform,
    sample_from_probs,
)


def verify(
    logits: torch.Tensor, requests: Sequence[Request], drafts: Sequence[Draft]
) -> list[Verification]:
    """Verify the drafts of a step: one Verification per request.

    logits: [sum(k_i + 1), V], the rows of all requests one after the other; the first row of a
    request is the target's prediction after its committed text, the others those after each node of
    its draft. Not modified. A request whose next token would come from NaN or infinite logits gets
    an error instead of it, and so does one whose own rules leave no token. ValueError on a tree
    whose tokens were drawn.
    """
    if not requests:
        return []
    rows = _Rows(requests, drafts)
    assert len(logits) == len(rows.requests), (
        f"{len(logits)} rows of logits, expected {len(rows.requests)}"
    )
    penalised = _penalised(logits, rows, requests, drafts)
    tokens, sampled, target_probs = draw_tokens(penalised, rows.requests, rows.positions, SAMPLE)
    token_ids = tokens.cpu().numpy()
    accepted = (token_ids == rows.draft_token_ids) & (token_ids != NO_TOKEN)
    drawn = [
        i
        for i, draft in enumerate(drafts)
        if draft.probs is not None and not requests[i].params.greedy
    ]
    if trees := [i for i in drawn if i in rows.trees]:
        raise ValueError(
            f"{len(drafts[trees[0]])} nodes of a draft tree have probs: draw chains, or leave "
            "probs out"
        )
    if drawn:
        _verify_drawn_chains(rows, drafts, drawn, sampled, target_probs, token_ids, accepted)
    stops = rows.first_rejected(accepted)
    paths = [
        range(start, stop + 1)
        for start, stop in zip(rows.starts.tolist(), stops.tolist(), strict=True)
    ]
    for i in rows.trees:
        own = slice(int(rows.starts[i]), int(rows.ends[i]) + 1)
        nodes, token = _walk(drafts[i], token_ids[own])
        paths[i] = [own.start, *(own.start + 1 + node for node in nodes)]
        token_ids[paths[i][-1]] = token
    _step_back(logits, rows, drafts, paths, token_ids)
    return _verifications(logits, rows, requests, drafts, paths, token_ids)


def _step_back(
    logits: torch.Tensor,
    rows: "_Rows",
    drafts: Sequence[Draft],
    paths: list[Sequence[int]],
    token_ids: np.ndarray,
) -> None:
    """Step back where a request's rules leave no token after the draft tokens that it accepts. The
    last of these is what it emits: the next step decides again after the text, as plain decoding
    would. A grammar may be too complex to look ahead in, and yet not for the text."""
    for i, path in enumerate(paths):
        if (
            len(path) > 1
            and token_ids[path[-1]] == NO_TOKEN
            and math.isfinite(logits[path[-1]].max())
        ):
            paths[i] = path[:-1]
            token_ids[path[-2]] = drafts[i].token_ids[path[-1] - rows.starts[i] - 1]


def _verify_drawn_chains(
    rows: "_Rows",
    drafts: Sequence[Draft],
    drawn: list[int],
    sampled: np.ndarray,
    target_probs: torch.Tensor,
    token_ids: np.ndarray,
    accepted: np.ndarray,
) -> None:
    """The rule of Leviathan et al. for the drafts numbered drawn, written into token_ids (recovered
    tokens) and accepted, both [N]."""
    drawn_rows = np.concatenate([np.arange(rows.starts[i], rows.ends[i]) for i in drawn])
    drawn_target_probs = target_probs[np.searchsorted(sampled, drawn_rows)]
    drawn_draft_probs = torch.cat([drafts[i].probs for i in drawn])
    accepted[drawn_rows] = _accept_drawn(drawn_target_probs, drawn_draft_probs, rows, drawn_rows)
    stops = rows.first_rejected(accepted)
    rejected = np.flatnonzero(np.isin(drawn_rows, stops) & (token_ids[drawn_rows] != NO_TOKEN))
    token_ids[drawn_rows[rejected]] = _recover_tokens(
        drawn_target_probs[rejected], drawn_draft_probs[rejected], rows, drawn_rows[rejected]
    )


def _walk(draft: Draft, token_ids: np.ndarray) -> tuple[list[int], int]:
    """Down a tree of point masses along the target's own tokens (int [k + 1], of the text and each
    node): the nodes that are accepted, root first, and the token after them."""
    edges = zip(draft.parents.tolist(), draft.token_ids.tolist(), strict=True)
    child_of = {edge: node for node, edge in enumerate(edges)}
    path: list[int] = []
    while True:
        node = path[-1] if path else -1
        token = int(token_ids[node + 1])
        if (node, token) not in child_of:
            return path, token
        path.append(child_of[node, token])


class _Rows:
    """The rows of a step, N in all: request i has rows starts[i] to ends[i], both included.

    requests: of each row. positions: int64 [N], index in the request's text of the token a row
    predicts. draft_token_ids: int64 [N], in a chain the draft token at that position, -1 in a
    request's last row, which has none. trees: numbers of the requests whose drafts are no chains;
    there draft_token_ids[row] is the token of node row - start.
    """

    def __init__(self, requests: Sequence[Request], drafts: Sequence[Draft]):
        lengths = np.array([len(draft) for draft in drafts], dtype=np.int64)
        self.ends = np.cumsum(lengths + 1) - 1
        self.starts = self.ends - lengths
        owners = np.repeat(np.arange(len(requests)), lengths + 1)
        num_tokens = np.array([request.num_tokens for request in requests], dtype=np.int64)
        self.requests = [requests[owner] for owner in owners]
        self.positions = num_tokens[owners] + np.arange(len(owners)) - self.starts[owners]
        self.draft_token_ids = np.full(len(owners), -1, dtype=np.int64)
        has_draft = np.ones(len(owners), dtype=bool)
        has_draft[self.ends] = False
        self.draft_token_ids[has_draft] = np.concatenate([draft.token_ids for draft in drafts])
        self.trees = [i for i, draft in enumerate(drafts) if not draft.is_chain]
        for i in self.trees:
            self.positions[self.starts[i] + 1 : self.ends[i] + 1] = (
                requests[i].num_tokens + drafts[i].depths
            )

    def first_rejected(self, accepted: np.ndarray) -> np.ndarray:
        """Row int64 [R] in which each request stops: its first that is not accepted, at the latest
        its last."""
        not_accepted = np.flatnonzero(~accepted)
        return not_accepted[np.searchsorted(not_accepted, self.starts)]


def _penalised(
    logits: torch.Tensor, rows: _Rows, requests: Sequence[Request], drafts: Sequence[Draft]
) -> torch.Tensor:
    """The logits themselves where no request has rules or penalties, else a copy with both
    applied."""
    ruled = [i for i, request in enumerate(requests) if request.has_logit_rules]
    wanted = [i for i, request in enumerate(requests) if request.params.has_penalties]
    if not ruled and not wanted:
        return logits
    penalised = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    for apply, chosen in ((apply_logit_rules, ruled), (apply_penalties, wanted)):
        if chosen:
            apply(
                penalised,
                [requests[i] for i in chosen],
                rows.starts[chosen],
                [drafts[i] for i in chosen],
            )
    return penalised


def _accept_drawn(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, rows: _Rows, drawn_rows: np.ndarray
) -> np.ndarray:
    """Accept with probability min(1, target_probs / draft_probs) of the draft token, bool [D];
    never at draft prob 0.

    target_probs, draft_probs: [D, V], of the rows numbered drawn_rows.
    """
    token_ids = (
        torch.from_numpy(rows.draft_token_ids[drawn_rows]).to(target_probs.device).unsqueeze(1)
    )
    target_prob, draft_prob = (
        probs.gather(1, token_ids).squeeze(1).double().cpu().numpy()
        for probs in (target_probs, draft_probs)
    )
    requests = [rows.requests[row] for row in drawn_rows]
    u = request_uniform(requests, rows.positions[drawn_rows], ACCEPT)
    return (draft_prob > 0) & (u * draft_prob < target_prob)


def _recover_tokens(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, rows: _Rows, rejected_rows: np.ndarray
) -> np.ndarray:
    """Draw from norm(max(target_probs - draft_probs, 0)), int64 [D]; from target_probs where
    rounding left nothing."""
    residual = (target_probs - draft_probs).clamp_(min=0)
    residual = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, target_probs)
    requests = [rows.requests[row] for row in rejected_rows]
    u = request_uniform(requests, rows.positions[rejected_rows], SAMPLE)
    return sample_from_probs(residual, u).cpu().numpy()


def _verifications(
    logits: torch.Tensor,
    rows: _Rows,
    requests: Sequence[Request],
    drafts: Sequence[Draft],
    paths: Sequence[Sequence[int]],
    token_ids: np.ndarray,
) -> list[Verification]:
    """Records of a step: request i accepts its draft's nodes after the first of the rows paths[i],
    and emits token_ids of the last one after them."""
    own = token_ids[[path[-1] for path in paths]]
    num_accepted = [len(path) - 1 for path in paths]
    nodes: list[tuple[int, ...] | None] = [None] * len(requests)
    for i in rows.trees:
        nodes[i] = tuple(row - paths[i][0] - 1 for row in paths[i][1:])
    emitted = []
    for draft, path_nodes, num, token in zip(
        drafts, nodes, num_accepted, own.tolist(), strict=True
    ):
        accepted = (
            draft.token_ids[:num] if path_nodes is None else draft.token_ids[list(path_nodes)]
        )
        emitted.append((*accepted.tolist(), *([token] if token != NO_TOKEN else ())))
    errors: list[str | None] = [None] * len(requests)
    are_callers = [False] * len(requests)
    for i in np.flatnonzero(own == NO_TOKEN):
        row = paths[i][-1]
        are_callers[i] = math.isfinite(logits[row].max())  # NaN if there is any
        errors[i] = _no_token(requests[i], int(rows.positions[row]), are_callers[i])
    logprobs = _emitted_logprobs(logits, rows, requests, emitted, paths)
    records = zip(emitted, num_accepted, logprobs, errors, nodes, are_callers, strict=True)
    return [Verification(*record) for record in records]


def _no_token(request: Request, position: int, is_callers: bool) -> str:
    number = position - request.num_prompt_tokens
    if not is_callers:
        reason = "its weights are damaged, or its numbers overflow (start with --dtype float32)"
        return f"the model's logits for output token {number} are NaN or infinite: {reason}"
    if request.grammar is not None:
        return f"the grammar is too complex to go on with output token {number}: use a simpler one"
    return f"allowed_token_ids, bad_words and min_tokens leave no token for output token {number}"


def _emitted_logprobs(
    logits: torch.Tensor,
    rows: _Rows,
    requests: Sequence[Request],
    emitted: Sequence[tuple[int, ...]],
    paths: Sequence[Sequence[int]],
) -> list[tuple[TokenLogprobs, ...] | None]:
    """Logprobs of every emitted token of the requests that want them, None for the others."""
    wanted = [
        i
        for i, request in enumerate(requests)
        if request.params.logprobs is not None and emitted[i]
    ]
    if not wanted:
        return [None] * len(requests)
    wanted_rows = np.concatenate([paths[i][: len(emitted[i])] for i in wanted])
    token_ids = np.concatenate([np.array(emitted[i], dtype=np.int64) for i in wanted])
    num_top = [rows.requests[row].params.logprobs for row in wanted_rows]
    records = iter(token_logprobs(logits[wanted_rows], token_ids, num_top))
    logprobs: list[tuple[TokenLogprobs, ...] | None] = [None] * len(requests)
    for i in wanted:
        logprobs[i] = tuple(next(records) for _ in emitted[i])
    return logprobs
