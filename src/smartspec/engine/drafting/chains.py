"""Chains of draft tokens for several requests at once, one pass of a model per depth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from smartspec.control.records import StopRule
from smartspec.core.batch import NO_DRAFT, Draft, chain
from smartspec.core.request import Request
from smartspec.engine.sampling.logit_rules import BANNED, broken_grammar
from smartspec.engine.sampling.sampler import sample_draft

# A pass over some rows, the newest token of each, int32 [1], and how many draft tokens stand before
# it: logits after these tokens, [n, vocabulary].
ChainPass = Callable[[list[int], list[np.ndarray], int], torch.Tensor]


def draft_chains(
    requests: Sequence[Request],
    lengths: np.ndarray,
    stop: StopRule | None,
    run_pass: ChainPass,
) -> list[Draft]:
    """Draft lengths[i] tokens after the text of row i (int [R]), fewer where stop says so; a row of
    length 0 costs nothing. Tokens of sampled requests are drawn, those of greedy ones are point
    masses."""
    made = [_Row([], [], []) for _ in requests]
    active = np.flatnonzero(lengths > 0)
    newest = {i: requests[i].token_ids[-1:] for i in active.tolist()}
    for depth in range(int(max(lengths, default=0))):
        rows = active.tolist()
        logits = run_pass(rows, [newest[i] for i in rows], depth)
        broken = broken_grammar([requests[i] for i in rows], [made[i].token_ids for i in rows])
        if broken is not None:
            # else the grammar is too complex to look ahead in: the draft ends here
            can_go_on = ~broken.all(dim=1)
            active = active[can_go_on.numpy()]
            if not (rows := active.tolist()):
                break
            logits = logits[can_go_on.to(logits.device)]
            logits = logits.masked_fill(broken[can_go_on].to(logits.device), BANNED)
        drawn, draft_probs = sample_draft(logits, [requests[i] for i in rows], depth)
        confidence = _confidence(logits, draft_probs)
        for i, *entry in zip(rows, drawn.tolist(), draft_probs, confidence.tolist(), strict=True):
            made[i].append(*entry)
            newest[i] = np.array(entry[:1], dtype=np.int32)
        is_done = lengths[active] == depth + 1
        if stop is not None:
            is_done |= np.asarray(
                stop(depth, active, confidence, _entropy(logits, draft_probs)), dtype=bool
            )
        active = active[~is_done]
        if not len(active):
            break
    return [row.draft() for row in made]


@dataclass
class _Row:
    """A draft in the making."""

    token_ids: list[int]
    probs: list[torch.Tensor | None]
    confidence: list[float]

    def append(self, token_id: int, probs: torch.Tensor | None, confidence: float) -> None:
        self.token_ids.append(token_id)
        self.probs.append(probs)
        self.confidence.append(confidence)

    def draft(self) -> Draft:
        if not self.token_ids:
            return NO_DRAFT
        # A sampled request's draft carries the distributions it was drawn from, a greedy one's
        # none.
        probs = None if self.probs[0] is None else torch.stack(self.probs)
        return chain(self.token_ids, probs=probs, confidence=np.array(self.confidence))


def _confidence(logits: torch.Tensor, draft_probs: list[torch.Tensor | None]) -> np.ndarray:
    """Largest probability of each row's distribution, float [n]: the one drawn from; where greedy,
    the model's own."""
    confidence = (
        torch.exp(logits.amax(dim=-1).float() - torch.logsumexp(logits.float(), dim=-1))
        .cpu()
        .numpy()
    )
    drawn = {row: probs.max() for row, probs in enumerate(draft_probs) if probs is not None}
    if drawn:
        # at once: each copy waits for the device
        confidence[[*drawn]] = torch.stack([*drawn.values()]).cpu().numpy()
    return confidence


def _entropy(logits: torch.Tensor, draft_probs: list[torch.Tensor | None]) -> np.ndarray:
    """Entropy of the same distributions in nats, float [n]."""
    probs = [
        torch.softmax(row.float(), dim=-1) if p is None else p
        for row, p in zip(logits, draft_probs, strict=True)
    ]
    return torch.special.entr(torch.stack(probs)).sum(dim=-1).cpu().numpy()
