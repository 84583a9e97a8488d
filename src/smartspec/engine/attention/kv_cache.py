"""The KV tensors: per layer, one contiguous range of positions per slot.

On a CPU the range is only address space until it is written: the cache is one private anonymous
mapping, memory appears page by page, and a trim gives pages back to the system (the CPU's version
of vAttention, arXiv 2405.04437). A block of 16 positions of 64 fp32 values is exactly one page. On
other devices the tensors are allocated as they are.
"""

import mmap
from contextlib import suppress

import numpy as np
import torch

from smartspec.core.blocks import MemoryOp, PrefixCopy, Trim, Wipe

# Not in Python's mmap module before 3.13; without it Linux may refuse address space larger than the
# memory.
MAP_NORESERVE = 0x4000
MADV_POPULATE_WRITE = 23  # not in Python's mmap module
MIN_POPULATED = 32  # positions; fewer touch few pages


class KVCache:
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
        shape = (2, num_layers, num_slots, num_kv_heads, max_len, head_dim)
        self._mapping = None
        if device.type == "cpu":
            self._mapping, storage = map_anonymous(shape, dtype)
        else:
            storage = allocated(shape, dtype, device)
        self._storage = storage
        self._num_ones = [0] * num_slots
        self.keys = list(storage[0])
        self.values = list(storage[1])

    def apply(self, op: MemoryOp) -> None:
        """Carry out one memory operation of the block manager."""
        if isinstance(op, PrefixCopy):
            prefix = self._storage[:, :, op.source_slot, :, : op.num_tokens]
            self._storage[:, :, op.target_slot, :, : op.num_tokens] = prefix
        elif isinstance(op, Wipe):
            self._storage[:, :, op.slot, :, op.start : op.num_tokens] = 0.0
        else:
            self._num_ones[op.slot] = min(self._num_ones[op.slot], op.num_tokens)
            if self._mapping is not None:
                self._give_pages_back(op)

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

    def _give_pages_back(self, trim: Trim) -> None:
        page = mmap.PAGESIZE
        max_len = self._storage.shape[4]  # a draft model's may be shorter than the text
        firsts, ends = self._byte_ranges(trim.slot, min(trim.num_tokens, max_len), max_len)
        self._advise(mmap.MADV_DONTNEED, -(-firsts // page) * page, ends // page * page)

    def _byte_ranges(self, slot: int, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The bytes at which positions of a slot begin and end in the mapping: int64 each, for
        every key and value head."""
        num_slots, num_heads, max_len, head_dim = self._storage.shape[2:]
        matrices = np.arange(2 * len(self.keys))[:, None] * num_slots + slot
        heads = (matrices * num_heads + np.arange(num_heads)).ravel()
        position_bytes = head_dim * self._storage.element_size()
        return (heads * max_len + start) * position_bytes, (heads * max_len + end) * position_bytes

    def _advise(self, advice: int, firsts: np.ndarray, ends: np.ndarray) -> None:
        for first, end in zip(firsts.tolist(), ends.tolist(), strict=True):
            if end > first:
                self._mapping.madvise(advice, first, end - first)


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
