"""Log-probabilities reported to the user: of the target's unmodified distribution, whatever the
sampling options."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from smartspec.core.batch import TokenLogprobs


def token_logprobs(
    logits: torch.Tensor, token_ids: np.ndarray, num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """One record per row: the logprob of token_ids[i] and the num_top[i] most likely tokens, best
    first.

    logits: [N, V], before penalties, temperature and filters. token_ids: int64 [N], the emitted
    tokens.
    """
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = (
        logprobs.gather(1, torch.from_numpy(token_ids).to(logits.device).unsqueeze(1))
        .squeeze(1)
        .tolist()
    )
    top = logprobs.topk(min(max(num_top), logits.shape[-1]))
    top_token_ids, top_values = top.indices.tolist(), top.values.tolist()
    return [
        TokenLogprobs(chosen[i], tuple(top_token_ids[i][:num]), tuple(top_values[i][:num]))
        for i, num in enumerate(num_top)
    ]


def prompt_logprobs(
    logits: torch.Tensor, token_ids: np.ndarray, num_top: int
) -> list[TokenLogprobs]:
    """The same of a prompt's tokens (int [N]), with their ranks. logits: [N, V], after the token
    before each."""
    wanted = torch.from_numpy(token_ids.astype(np.int64)).to(logits.device).unsqueeze(1)
    ranks = (logits > logits.gather(1, wanted)).sum(dim=1).add(1).tolist()
    records = (
        token_logprobs(logits, token_ids.astype(np.int64), [num_top] * len(token_ids))
        if len(token_ids)
        else []
    )
    return [replace(record, rank=rank) for record, rank in zip(records, ranks, strict=True)]
