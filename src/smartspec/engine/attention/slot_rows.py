"""Rows of numbers by position of every slot, beside a cache: on a CPU memory that appears when it
is written and goes back when a slot is trimmed, as the cache's does."""

import mmap

import torch

from smartspec.core.blocks import MemoryOp, PrefixCopy, Trim
from smartspec.engine.attention.kv_cache import map_anonymous


class SlotRows:
    """rows: [num_slots, max_len, size]."""

    def __init__(
        self, num_slots: int, max_len: int, size: int, dtype: torch.dtype, device: torch.device
    ):
        shape = (num_slots, max_len, size)
        self._mapping = None
        if device.type == "cpu":
            self._mapping, self.rows = map_anonymous(shape, dtype)
        else:
            self.rows = torch.empty(shape, dtype=dtype, device=device)

    def apply(self, op: MemoryOp) -> None:
        """Carry out one memory operation of the block manager. What is wiped is written anew before
        it is read."""
        if isinstance(op, PrefixCopy):
            self.rows[op.target_slot, : op.num_tokens] = self.rows[op.source_slot, : op.num_tokens]
        elif isinstance(op, Trim) and self._mapping is not None:
            row_bytes, page = self.rows.shape[2] * self.rows.element_size(), mmap.PAGESIZE
            slot_bytes = self.rows.shape[1] * row_bytes
            first = -(-(op.slot * slot_bytes + op.num_tokens * row_bytes) // page) * page
            end = (op.slot + 1) * slot_bytes // page * page
            if end > first:
                self._mapping.madvise(mmap.MADV_DONTNEED, first, end - first)
