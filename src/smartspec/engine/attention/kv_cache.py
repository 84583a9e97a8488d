"""The KV tensors: per layer, one contiguous range of positions per slot. On a CPU a block of 16
positions of 64 fp32 values is exactly one page."""

import mmap
from contextlib import suppress

import numpy as np
import torch

from smartspec.core.blocks import MemoryOp, Trim
from smartspec.engine.attention.slot_memory import SlotMemory

MADV_POPULATE_WRITE = 23  # not in Python's mmap module
MIN_POPULATED = 32  # positions; fewer touch few pages


class KVCache(SlotMemory):
    """keys[layer], values[layer]: [num_slots, num_kv_heads, max_len, head_dim]. ValueError where a
    device has not the memory."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        max_len: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        super().__init__((2, num_layers, num_slots, num_kv_heads, max_len, head_dim), dtype, device)
        self._num_ones = [0] * num_slots
        self.keys, self.values = list(self._storage[0]), list(self._storage[1])

    def apply(self, op: MemoryOp) -> None:
        """See SlotMemory."""
        super().apply(op)
        if isinstance(op, Trim):
            self._num_ones[op.slot] = min(self._num_ones[op.slot], op.num_tokens)

    def populate(self, slot: int, start: int, end: int) -> None:
        """Get the memory of these positions at once, before a pass faults it in page by page: a
        prefill of 512 tokens touches 5760 pages, and takes 4 % longer so. Only a hint, without
        effect before Linux 5.14."""
        if self._mapping is None or end - start < MIN_POPULATED:
            return
        page = mmap.PAGESIZE
        firsts, ends = self._byte_ranges(slot, start, end)
        with suppress(OSError):
            self._advise(MADV_POPULATE_WRITE, firsts // page * page, -(-ends // page) * page)

    def compact(self, slot: int, start: int, places: np.ndarray) -> None:
        """Move what lies in these places of a slot (int [n], ascending, from start on) to start..
        in every layer."""
        index = torch.from_numpy(places).to(self._storage.device)
        self._storage[:, :, slot, :, start : start + len(places)] = self._storage[
            :, :, slot, :, index
        ]

    def write_ones(self, slot: int, start: int, end: int) -> None:
        """Make these positions of a slot memory that has been written, as real keys and values
        are."""
        self._storage[:, :, slot, :, start:end] = 1.0

    def fill_with_ones(self, slot: int, end: int) -> None:
        """The same for all positions before end that have not been filled so since the slot was
        last trimmed."""
        if self._num_ones[slot] < end:
            self.write_ones(slot, self._num_ones[slot], end)
            self._num_ones[slot] = end
