"""The target's tokens that a head drafts, by the maps of its checkpoint: d2t says what to add to a
draft token's id, t2d which of the target's tokens are drafted."""

import logging
from pathlib import Path

import torch

from smartspec.engine.drafting.head.checkpoint.files import REMEDY, in_integers

logger = logging.getLogger(__name__)


def complete_map(
    folder: Path, weights: dict[str, torch.Tensor], num_drafts: int, vocab_size: int
) -> None:
    """Put d2t, int64 [num_drafts], among the weights where it is missing: all zeros for a head of
    the whole vocabulary, else by t2d, which goes.

    Raises ValueError where d2t has no integers, OSError where neither map says which tokens are
    drafted."""
    t2d = weights.pop("t2d", None)
    if "d2t" in weights:
        weights["d2t"] = in_integers(folder, "d2t", weights["d2t"])
        _compare(folder, weights["d2t"], t2d)
    elif num_drafts == vocab_size:
        weights["d2t"] = torch.zeros(vocab_size, dtype=torch.int64)
    elif t2d is not None and t2d.shape == (vocab_size,) and int((t2d != 0).sum()) == num_drafts:
        weights["d2t"] = (t2d != 0).nonzero()[:, 0] - torch.arange(num_drafts)
    else:
        raise OSError(
            f"{folder} lacks weights, 'd2t' among them, which names the {num_drafts} of "
            f"{vocab_size} tokens that it drafts: {REMEDY}"
        )


def _compare(folder: Path, d2t: torch.Tensor, t2d: torch.Tensor | None) -> None:
    """Warn where the maps say different tokens. Drafts go by d2t, as in vLLM; a t2d that was never
    set is all zeros."""
    if t2d is None or d2t.dim() != 1 or not (t2d != 0).any():
        return
    by_d2t = sorted(set((d2t + torch.arange(len(d2t))).tolist()))
    if by_d2t != (t2d.flatten() != 0).nonzero()[:, 0].tolist():
        logger.warning(
            "%s: its index maps contradict each other: d2t and t2d name different tokens. Drafts "
            "go by d2t; where few are accepted, download or train the head again",
            folder,
        )


def check_ids(folder: Path, target_ids: torch.Tensor, vocab_size: int, target: str) -> None:
    """target_ids: int64 [num_drafts]. Raises ValueError where the target has no such token; warns
    where two draft tokens are one of the target's."""
    outside = (target_ids < 0) | (target_ids >= vocab_size)
    if outside.any():
        raise ValueError(
            f"{folder}: its index map d2t names token {int(target_ids[outside][0])}, the target "
            f"has {vocab_size} tokens: use a head that was trained for {target!r}"
        )
    if len(target_ids.unique()) < len(target_ids):
        logger.warning(
            "%s: its index map d2t names a token twice: where few drafts are accepted, download or "
            "train it again",
            folder,
        )
