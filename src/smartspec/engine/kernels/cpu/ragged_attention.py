"""Our own attention kernel for processors (attention.h).

Why: at 16 requests of unequal length the padded calls of torch's attention took 30 of 69 ms of a
step, four times what reading the KV takes; in prefill they compute what lies beyond the diagonal, a
quarter of a pass over 1024 tokens. Without a compiler, or where the kernel does not apply,
everything runs through torch instead.
"""

import ctypes
from typing import NamedTuple

import torch

from smartspec.engine.kernels.cpu import native
from smartspec.engine.kernels.cpu.shapes import MAX_GROUP, MAX_HEAD_DIM, LayerShape, address, fields

LIBRARY = "ragged_attention"
MAX_ROWS = MAX_GROUP
MAX_TILE_TOKENS = 64
TILE_FIELDS = 7


class Attention(ctypes.Structure):
    """The struct of the same name in attention.h."""

    _fields_ = [
        *fields(ctypes.c_void_p, "query", "key", "value", "keys", "values", "output"),
        *fields(ctypes.c_void_p, "tiles", "ancestors"),
        *fields(ctypes.c_int64, "query_row", "query_head", "key_row", "key_head"),
        *fields(ctypes.c_int64, "value_row", "value_head", "num_tiles", "num_kv_heads"),
        *fields(ctypes.c_int64, "group_size", "max_len", "head_dim", "window"),
        ("scale", ctypes.c_float),
    ]


class Heads(NamedTuple):
    """The heads of the new tokens."""

    query: torch.Tensor  # [num_heads, N, head_dim]
    key: torch.Tensor  # [num_kv_heads, N, head_dim]
    value: torch.Tensor  # as key


class CachedLayer(NamedTuple):
    """One layer of the cache: [slots, num_kv_heads, max_len, head_dim] each."""

    keys: torch.Tensor
    values: torch.Tensor


def ragged_attention(
    new: Heads,
    cached: CachedLayer,
    output: torch.Tensor,
    tiles: torch.Tensor,
    scale: float,
    window: int | None,
    ancestors: torch.Tensor | None = None,
) -> None:
    """Write the new tokens' key and value into the cache and attend, all in fp32 on CPU.

    output: [N, num_heads, head_dim], filled for the rows of tiles.
    tiles: int64 [S, 7] of (slot, first place, first row, number of tokens, base of their tree or
    -1, sinks and window of attention.sparse_window or 0). window: the layer's sliding window in
    tokens. ancestors: int64 [N or fewer], see attention.tree_mask, of each row; None where no tile
    is of a tree. Raises ValueError for other shapes.
    """
    attention = attention_of(new, cached, output, tiles, scale, window, ancestors)
    native.load_kernels(LIBRARY).library.ragged_attention(ctypes.byref(attention))


def attention_of(
    new: Heads,
    cached: CachedLayer,
    output: torch.Tensor,
    tiles: torch.Tensor,
    scale: float,
    window: int | None = None,
    ancestors: torch.Tensor | None = None,
) -> Attention:
    """The struct that kernels are given, from the arguments of ragged_attention; the tensors must
    outlive it."""
    (query, key, value), (keys, values) = new, cached
    num_heads, num_tokens, head_dim = query.shape
    num_kv_heads, num_slots, max_len = key.shape[0], keys.shape[0], keys.shape[2]
    LayerShape(1, 1, num_heads, num_kv_heads, head_dim).check()
    if window is not None and window < 1:
        raise ValueError(f"a window is {window} tokens, it must be 1 at least, or None")
    in_cache, rows = (
        (num_slots, num_kv_heads, max_len, head_dim),
        (num_heads, num_kv_heads, num_kv_heads),
    )
    named = zip(("query", "key", "value"), (query, key, value), rows, strict=True)
    return Attention(
        *(
            _strided_address(name, tensor, (heads, num_tokens, head_dim))
            for name, tensor, heads in named
        ),
        address("keys", keys, in_cache),
        address("values", values, in_cache),
        address("output", output, (num_tokens, num_heads, head_dim)),
        address("tiles", tiles, (len(tiles), TILE_FIELDS), torch.int64),
        None
        if ancestors is None
        else address("ancestors", ancestors, (len(ancestors),), torch.int64),
        *(
            query.stride(1),
            query.stride(0),
            key.stride(1),
            key.stride(0),
            value.stride(1),
            value.stride(0),
        ),
        *(len(tiles), num_kv_heads, num_heads // num_kv_heads, max_len, head_dim, window or 0),
        scale,
    )


def _strided_address(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> int:
    """The address of heads and tokens that may lie apart, checked as by `address`."""
    if (
        tensor.shape != shape
        or tensor.dtype != torch.float32
        or not tensor.is_cpu
        or tensor.stride(2) != 1
    ):
        raise ValueError(
            f"{name} must be torch.float32 of shape {shape} on the CPU, its last dimension "
            f"contiguous, got {tensor.dtype} of {tuple(tensor.shape)} with strides "
            f"{tensor.stride()} on {tensor.device}"
        )
    return tensor.data_ptr()


def max_tokens_per_tile(
    device: torch.device, dtype: torch.dtype, group_size: int, head_dim: int
) -> int:
    """New tokens of a request the kernel takes at once; 0 where it does not apply or could not be
    built."""
    applies = why_not(device, dtype, group_size, head_dim) is None
    return min(MAX_TILE_TOKENS, MAX_ROWS // group_size) if applies else 0


def why_not(device: torch.device, dtype: torch.dtype, group_size: int, head_dim: int) -> str | None:
    """The reason why the kernel does not run on such a model, None where it does."""
    if head_dim > MAX_HEAD_DIM:
        return f"a head has {head_dim} dimensions, more than {MAX_HEAD_DIM}"
    if group_size > MAX_ROWS:
        return f"{group_size} heads share keys, more than {MAX_ROWS}"
    return native.why_not(LIBRARY, device, dtype)
