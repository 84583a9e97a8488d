"""The divergence of a draft's distributions from the target's, for policies that use it (DSDE, arXiv 2509.01083)."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from smartspec.core.batch import Draft
from smartspec.core.request import Request
from smartspec.engine.sampling.sampler import distributions

MIN_PROBABILITY = 1e-8  # of both distributions, as in the authors' code
MOST = -math.log(MIN_PROBABILITY)


def divergences(logits: torch.Tensor, requests: Sequence[Request], drafts: Sequence[Draft]) -> np.ndarray:
    """Divergence of draft and target at each node, in nats: float [R, K], NaN after a draft's end.

    logits: as verification.verify takes them. Where a draft has its distributions it is the Kullback-Leibler divergence
    sum p log(p / q) of target p and draft q. Where it has confidence alone, it is that of the split into the node's
    token and all others, which is never larger. A model-free draft is sure of its token: -log p.
    """
    found = np.full((len(drafts), max(map(len, drafts), default=0)), np.nan)
    first = 0
    for of_row, request, draft in zip(found, requests, drafts, strict=True):
        if len(draft):
            rows = torch.from_numpy(first + 1 + draft.parents.astype(np.int64)).to(logits.device)
            target = distributions(logits[rows], [request] * len(draft)).clamp(min=MIN_PROBABILITY)
            of_row[: len(draft)] = np.nan_to_num(_of_draft(target, draft), nan=MOST)  # NaN: of bad logits
        first += len(draft) + 1
    return found


def _of_draft(target: torch.Tensor, draft: Draft) -> np.ndarray:
    """target: [n, V]. float [n]."""
    if draft.probs is not None:
        own = draft.probs.float().clamp(min=MIN_PROBABILITY)
        return (target * (target / own).log()).sum(dim=-1).cpu().numpy()
    tokens = torch.from_numpy(draft.token_ids.astype(np.int64)).to(target.device)
    p = target.gather(1, tokens[:, None])[:, 0].double().cpu().numpy()
    if draft.confidence is None:
        return -np.log(p)
    q = np.clip(draft.confidence, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    p = np.clip(p, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
