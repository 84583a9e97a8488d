"""Ragged passes over slots: the KV cache of a model, and the rows and attention of a pass."""

import numpy as np
import torch

from smartspec.core.blocks import MemoryOp
from smartspec.engine.attention.kv_cache import KVCache
from smartspec.engine.attention.ragged import AttentionPlan, Segment
from smartspec.engine.kernels.cpu.ragged_attention import max_tokens_per_tile
from smartspec.engine.models.loaded_model import LoadedModel


class RaggedRunner:
    """A model's KV cache of num_slots ranges of max_len positions, and what its passes begin
    with."""

    def __init__(self, loaded: LoadedModel, num_slots: int, max_len: int):
        self.loaded, self.max_len = loaded, max_len
        self.device = torch.device(loaded.device)
        self.max_tile_tokens = max_tokens_per_tile(
            self.device, loaded.dtype, loaded.num_heads // loaded.num_kv_heads, loaded.head_dim
        )
        self.cache = KVCache(
            num_layers=loaded.num_layers,
            num_slots=num_slots,
            num_kv_heads=loaded.num_kv_heads,
            max_len=max_len,
            head_dim=loaded.head_dim,
            dtype=loaded.dtype,
            device=self.device,
        )

    def apply(self, memory_ops: tuple[MemoryOp, ...]) -> None:
        """Carry out the block manager's memory operations, in order. A step begins with them."""
        for op in memory_ops:
            self.cache.apply(op)

    def _placed(self, segments: list[Segment]) -> tuple[list[int], list[Segment]]:
        """The segments by slot, whose memory is there, and the caller's number of each."""
        for segment in segments:
            self.cache.populate(segment.slot, segment.start, segment.end)
        order = sorted(range(len(segments)), key=lambda i: segments[i].slot)
        return order, [segments[i] for i in order]

    def _plan(self, ordered: list[Segment]) -> tuple[torch.Tensor, AttentionPlan]:
        """Tokens of a pass, int64 [N], and its attention."""
        plan = AttentionPlan(
            ordered, self.cache, self.loaded.windows, self.device, self.max_tile_tokens
        )
        token_ids = torch.from_numpy(
            np.concatenate([s.token_ids for s in ordered]).astype(np.int64)
        )
        return token_ids.to(self.device), plan


def logit_rows(ordered: list[Segment], order: list[int]) -> np.ndarray:
    """Rows of the ragged batch whose logits are wanted, in the caller's order. int64 [sum of
    num_logits]."""
    ends = np.cumsum([s.num_tokens for s in ordered])
    rows: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(ordered)
    for segment, end, index in zip(ordered, ends, order, strict=True):
        rows[index] = np.arange(end - segment.num_logits, end)
    wanted = np.concatenate(rows).astype(np.int64)
    # No matrix kernel likes zero rows: a pass that wants no logits computes those of one row and
    # drops them.
    return wanted if len(wanted) else np.zeros(1, dtype=np.int64)
