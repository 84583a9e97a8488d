"""Numbers of every position of every slot: one contiguous range of positions per slot.

On a CPU the range is only address space until it is written: it is one private anonymous mapping,
memory appears page by page, and a trim gives pages back to the system (the CPU's version of
vAttention, arXiv 2405.04437). On other devices the tensors are allocated as they are.
"""

import mmap
from contextlib import suppress

import numpy as np
import torch

from smartspec.core.blocks import MemoryOp, PrefixCopy, Trim, Wipe

# Not in Python's mmap module before 3.13; without it Linux may refuse address space larger than the
# memory.
MAP_NORESERVE = 0x4000


class SlotMemory:
    """shape: [kinds, num_layers, num_slots, num_heads, max_len, size]. ValueError where a device
    has not the memory."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device):
        self._mapping = None
        if device.type == "cpu":
            self._mapping, self._storage = map_anonymous(shape, dtype)
        else:
            self._storage = allocated(shape, dtype, device)

    def apply(self, op: MemoryOp) -> None:
        """Carry out one memory operation of the block manager."""
        if isinstance(op, PrefixCopy):
            prefix = self._storage[:, :, op.source_slot, :, : op.num_tokens]
            self._storage[:, :, op.target_slot, :, : op.num_tokens] = prefix
        elif isinstance(op, Wipe):
            self._storage[:, :, op.slot, :, op.start : op.num_tokens] = 0.0
        elif self._mapping is not None:
            self._give_pages_back(op)

    def _give_pages_back(self, trim: Trim) -> None:
        page = mmap.PAGESIZE
        max_len = self._storage.shape[4]  # a draft model's may be shorter than the text
        firsts, ends = self._byte_ranges(trim.slot, min(trim.num_tokens, max_len), max_len)
        self._advise(mmap.MADV_DONTNEED, -(-firsts // page) * page, ends // page * page)

    def _byte_ranges(self, slot: int, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The bytes at which positions of a slot begin and end in the mapping: int64 each, for
        every head of every layer."""
        kinds, num_layers, num_slots, num_heads, max_len, size = self._storage.shape
        matrices = np.arange(kinds * num_layers)[:, None] * num_slots + slot
        heads = (matrices * num_heads + np.arange(num_heads)).ravel()
        position_bytes = size * self._storage.element_size()
        return (heads * max_len + start) * position_bytes, (heads * max_len + end) * position_bytes

    def _advise(self, advice: int, firsts: np.ndarray, ends: np.ndarray) -> None:
        for first, end in zip(firsts.tolist(), ends.tolist(), strict=True):
            if end > first:
                self._mapping.madvise(advice, first, end - first)


class SlotRows(SlotMemory):
    """rows: [num_slots, max_len, size], beside a cache."""

    def __init__(
        self, num_slots: int, max_len: int, size: int, dtype: torch.dtype, device: torch.device
    ):
        super().__init__((1, 1, num_slots, 1, max_len, size), dtype, device)
        self.rows = self._storage[0, 0, :, 0]


def allocated(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros on a device. Not empty: padded positions are masked, but a NaN found there would
    survive the mask."""
    try:
        return torch.zeros(shape, dtype=dtype, device=device)
    except torch.OutOfMemoryError as error:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize / 1e9
        _, num_layers, num_slots, _, max_len, _ = shape
        raise ValueError(
            f"the KV of {num_slots} requests of {max_len} tokens in {num_layers} layers takes "
            f"{size:.1f} GB, which {device} has not left: lower max_model_len or max_batch"
        ) from error


def map_anonymous(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[mmap.mmap, torch.Tensor]:
    """Memory that appears page by page when it is written, and its tensor of this shape."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    mapping = mmap.mmap(-1, num_bytes, flags=flags)
    # of a kernel without huge pages, which take memory for positions that were never written
    with suppress(OSError):
        mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return mapping, torch.frombuffer(mapping, dtype=dtype).view(shape)
