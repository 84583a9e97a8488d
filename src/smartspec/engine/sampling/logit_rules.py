"""Request options about single tokens: allowed, biased, banned, or by a grammar.

Each row of logits is changed as plain decoding would change it after the same text, the draft
tokens before it included. So the target's own token and distribution at every draft position are
those of plain decoding, and verification needs to know of no rule: a draft token that one bans is
rejected like any other the target would not say.
"""

from collections.abc import Sequence

import numpy as np
import torch

from smartspec.core.batch import Draft
from smartspec.core.grammar import Grammar
from smartspec.core.request import Request
from smartspec.core.token_rules import TokenRules

BANNED = float("-inf")


def apply_logit_rules(
    logits: torch.Tensor,
    requests: Sequence[Request],
    first_rows: Sequence[int],
    drafts: Sequence[Draft],
) -> None:
    """Apply the rules of requests to their rows in place; shapes as in sampler.apply_penalties, and
    as there before temperature and filters. Order, as in vLLM: grammar, allowed_token_ids,
    bad_words, min_tokens, logit_bias."""
    for request, first_row, draft in zip(requests, first_rows, drafts, strict=True):
        rows = logits[first_row : first_row + len(draft) + 1]
        rules = request.params.token_rules
        if request.grammar is not None:
            allowed = torch.from_numpy(_allowed_rows(request.grammar, draft))
            rows.masked_fill_(~allowed.to(rows.device), BANNED)
        if rules.is_banned is not None:
            rows[:, : len(rules.is_banned)].masked_fill_(_tensor(rules.is_banned, rows), BANNED)
            rows[:, len(rules.is_banned) :] = BANNED
        if rules.endings:
            _ban_endings(rows, request, draft, rules)
        if request.num_output_tokens < request.params.min_tokens:
            # by the draft tokens before each row's prediction
            num_tokens = request.num_output_tokens + np.append(0, draft.depths)
            early = np.flatnonzero(num_tokens < request.params.min_tokens)
            rows[_tensor(early, rows)[:, None], _tensor(request.sorted_stop_token_ids, rows)] = (
                BANNED
            )
        if len(rules.biased):
            rows[:, _tensor(rules.biased, rows)] += _tensor(rules.biases, rows)


def _allowed_rows(grammar: Grammar, draft: Draft) -> np.ndarray:
    """The tokens that the grammar allows after the text and each node: bool [k + 1, V]. After a
    node that is not reached, or of which the grammar cannot tell, nothing: no token comes from
    there."""
    allowed = [grammar.allowed()]
    for parent, token_id, path in zip(
        draft.parents.tolist(), draft.token_ids.tolist(), draft.paths[1:], strict=True
    ):
        is_reached = allowed[parent + 1][token_id]
        allowed.append(grammar.allowed(path) if is_reached else np.zeros_like(allowed[0]))
    return np.stack(allowed)


def broken_grammar(
    requests: Sequence[Request], token_ids: Sequence[Sequence[int]]
) -> torch.Tensor | None:
    """The tokens that the grammar of requests[i] does not allow after its text and token_ids[i]:
    bool [N, V]; None if none has a grammar. Everything where it is too complex to tell."""
    allowed = [
        None if r.grammar is None else r.grammar.allowed(path)
        for r, path in zip(requests, token_ids, strict=True)
    ]
    known = [row for row in allowed if row is not None]
    if not known:
        return None
    everything = np.ones_like(known[0])
    return torch.from_numpy(~np.stack([everything if row is None else row for row in allowed]))


def _tensor(values: np.ndarray, rows: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values).to(rows.device)


def _ban_endings(rows: torch.Tensor, request: Request, draft: Draft, rules: TokenRules) -> None:
    """Ban what would complete a bad word, in each row after the text and the draft tokens before
    it."""
    output = request.output_token_ids[max(0, request.num_output_tokens - rules.longest) :]
    text = tuple(output.tolist())
    for row, path in enumerate(draft.paths):
        if banned := rules.completing((*text, *path)):
            rows[row, torch.tensor(banned, device=rows.device)] = BANNED
