"""What requests ask of single tokens: allowed, biased, banned, or by a grammar.

Each row of logits is changed as plain decoding would change it behind the same text, the draft tokens before it
included. So the target's own token and distribution at every draft position are those of plain decoding, and
verification needs to know of no rule: a draft token that one bans is rejected like any other the target would not say.
"""

from collections.abc import Sequence

import numpy as np
import torch

from smartspec.core.batch import Draft
from smartspec.core.request import Request

BANNED = float("-inf")


def apply_logit_rules(
    logits: torch.Tensor,
    requests: Sequence[Request],
    first_rows: Sequence[int],
    drafts: Sequence[Draft],
) -> None:
    """Apply the rules of requests to their rows in place; shapes as in sampler.apply_penalties, and as there before
    temperature and filters. Order, as in vLLM: grammar, allowed_token_ids, bad_words, min_tokens, logit_bias."""
    for request, first_row, draft in zip(requests, first_rows, drafts, strict=True):
        rows = logits[first_row : first_row + len(draft) + 1]
        params = request.params
        if request.grammar is not None:
            broken = broken_grammar([request] * len(rows), draft.paths)
            rows.masked_fill_(broken.to(rows.device), BANNED)
        if params.allowed_token_ids:
            _allow_only(rows, _index(params.allowed_token_ids, rows))
        for row, token_ids in enumerate(_banned(request, draft)):
            if token_ids:
                rows[row, _index(token_ids, rows)] = BANNED
        if params.logit_bias:
            token_ids, biases = zip(*params.logit_bias, strict=True)
            rows[:, _index(token_ids, rows)] += torch.tensor(biases, dtype=rows.dtype, device=rows.device)


def broken_grammar(requests: Sequence[Request], token_ids: Sequence[Sequence[int]]) -> torch.Tensor | None:
    """What the grammar of requests[i] does not allow behind its text and token_ids[i]: bool [N, V]; None if none has
    a grammar. Every node of a draft is a row, with the draft tokens that lead to it."""
    allowed = [
        None if r.grammar is None else r.grammar.allowed(path) for r, path in zip(requests, token_ids, strict=True)
    ]
    known = [row for row in allowed if row is not None]
    if not known:
        return None
    everything = np.ones_like(known[0])
    return torch.from_numpy(~np.stack([everything if row is None else row for row in allowed]))


def _index(token_ids: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
    return torch.tensor(token_ids, dtype=torch.int64, device=rows.device)


def _allow_only(rows: torch.Tensor, allowed: torch.Tensor) -> None:
    kept = rows[:, allowed]
    rows.fill_(BANNED)
    rows[:, allowed] = kept


def _banned(request: Request, draft: Draft) -> list[list[int]]:
    """Tokens that may not come next, for each row: what would complete a bad word, and what would stop too early."""
    params = request.params
    longest = max(map(len, params.bad_words_token_ids), default=0)
    output = tuple(request.output_token_ids[max(0, request.num_output_tokens - longest) :].tolist())
    ends, depths = [output], [0]  # what each row is predicted behind, as far as a bad word reaches
    for parent, token in zip(draft.parents.tolist(), draft.token_ids.tolist(), strict=True):
        ends.append((*ends[parent + 1], token))
        depths.append(depths[parent + 1] + 1)
    banned: list[list[int]] = []
    for end, depth in zip(ends, depths, strict=True):
        token_ids = [
            word[-1]
            for word in params.bad_words_token_ids
            if len(word) <= len(end) + 1 and end[len(end) - len(word) + 1 :] == word[:-1]
        ]
        if request.num_output_tokens + depth < params.min_tokens:
            token_ids.extend(request.stop_token_ids)
        banned.append(token_ids)
    return banned
