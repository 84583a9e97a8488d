"""The KV tensors: per layer, one contiguous range of positions per slot.

On a CPU the range is only address space until it is written: the cache is one private anonymous mapping, memory appears
page by page, and a trim gives pages back to the system (the CPU's version of vAttention, arXiv 2405.04437). A block of
16 positions of 64 fp32 values is exactly one page. On other devices the tensors are allocated as they are.
"""

import mmap

import numpy as np
import torch

from smartspec.core.blocks import PrefixCopy, Trim

# Not in Python's mmap module before 3.13; without it Linux may refuse address space larger than the memory.
MAP_NORESERVE = 0x4000


class KVCache:
    """keys[layer], values[layer]: [num_slots, num_kv_heads, max_len, head_dim]."""

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
            self._mapping, storage = _map_anonymous(shape, dtype)
        else:
            # Not empty: padded positions are masked, but a NaN found there would survive the mask.
            storage = torch.zeros(shape, dtype=dtype, device=device)
        self._storage = storage
        self.keys = list(storage[0])
        self.values = list(storage[1])

    def apply(self, op: PrefixCopy | Trim) -> None:
        """Carry out one memory operation of the block manager."""
        if isinstance(op, PrefixCopy):
            prefix = self._storage[:, :, op.source_slot, :, : op.num_tokens]
            self._storage[:, :, op.target_slot, :, : op.num_tokens] = prefix
        elif self._mapping is not None:
            self._give_pages_back(op)

    def _give_pages_back(self, trim: Trim) -> None:
        freed = self._storage[:, :, trim.slot, :, trim.num_tokens :]
        num_bytes = freed[0, 0, 0].numel() * freed.element_size()
        for index in np.ndindex(freed.shape[:3]):
            start = freed[index].storage_offset() * freed.element_size()
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (start + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
            if length > 0:
                self._mapping.madvise(mmap.MADV_DONTNEED, first, length)


def _map_anonymous(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[mmap.mmap, torch.Tensor]:
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    mapping = mmap.mmap(-1, num_bytes, flags=flags)
    return mapping, torch.frombuffer(mapping, dtype=dtype).view(shape)
