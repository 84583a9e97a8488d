"""Our own attention kernel for processors (attention.h).

Why: at 16 requests of unequal length the padded calls of torch's attention took 30 of 69 ms of a step, four times what
reading the KV takes; in prefill they compute what lies behind the diagonal, a quarter of a pass over 1024 tokens.
Without a compiler, or where the kernel does not apply, everything runs through torch instead.
"""

import ctypes

import torch

from smartspec.engine.kernels.cpu import native

LIBRARY = "ragged_attention"
MAX_ROWS = 256
MAX_TILE_TOKENS = 64
MAX_HEAD_DIM = 256


class Attention(ctypes.Structure):
    """The struct of the same name in attention.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "keys", "values", "output")),
        *((name, ctypes.c_void_p) for name in ("tiles", "ancestors")),
        *((name, ctypes.c_int64) for name in ("query_row", "query_head", "key_row", "key_head")),
        *((name, ctypes.c_int64) for name in ("value_row", "value_head", "num_tiles", "num_kv_heads")),
        *((name, ctypes.c_int64) for name in ("group_size", "max_len", "head_dim", "window")),
        ("scale", ctypes.c_float),
    ]


def ragged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    output: torch.Tensor,
    tiles: torch.Tensor,
    scale: float,
    window: int | None,
    ancestors: torch.Tensor | None = None,
) -> None:
    """Write the new tokens' key and value into the cache and attend, all in fp32 on CPU.

    query: [num_heads, N, head_dim]; key, value: [num_kv_heads, N, head_dim]; keys, values: one layer of the cache,
    [slots, num_kv_heads, max_len, head_dim]; output: [N, num_heads, head_dim], filled for the rows of tiles.
    tiles: int64 [S, 5] of (slot, first place, first row, number of tokens, base of their tree or -1). window: sliding
    window in tokens. ancestors: int64 [N or fewer], see attention.tree_mask, of each row; None where no tile is of a
    tree. Raises ValueError for other shapes.
    """
    attention = attention_of(query, key, value, keys, values, output, tiles, scale, window, ancestors)
    native.load_kernels(LIBRARY).library.ragged_attention(ctypes.byref(attention))


def attention_of(
    query, key, value, keys, values, output, tiles, scale: float, window: int | None, ancestors: torch.Tensor | None
) -> Attention:
    """What kernels are given, from the arguments of ragged_attention; the tensors must outlive it."""
    num_kv_heads, _, head_dim = key.shape
    _check_shapes(query, key, value, keys, values, output, tiles)
    return Attention(
        *(tensor.data_ptr() for tensor in (query, key, value, keys, values, output, tiles)),
        None if ancestors is None else ancestors.data_ptr(),
        *(query.stride(1), query.stride(0), key.stride(1), key.stride(0), value.stride(1), value.stride(0)),
        *(len(tiles), num_kv_heads, query.shape[0] // num_kv_heads, keys.shape[2], head_dim, window or 0),
        scale,
    )


def _check_shapes(query, key, value, keys, values, output, tiles) -> None:
    """The kernel reads and writes memory as if it were of these shapes."""
    num_heads, num_tokens, head_dim = query.shape
    fits = (
        key.shape == value.shape == (key.shape[0], num_tokens, head_dim)
        and num_heads % key.shape[0] == 0
        and keys.shape == values.shape == (*keys.shape[:1], key.shape[0], keys.shape[2], head_dim)
        and output.shape == (num_tokens, num_heads, head_dim)
        and query.stride(2) == key.stride(2) == value.stride(2) == 1
        and tiles.shape[1:] == (5,)
    )
    if not fits:
        tensors = {"query": query, "key": key, "value": value, "keys": keys, "values": values, "output": output}
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"shapes do not fit each other: {shapes}, tiles {tuple(tiles.shape)}")


def max_tokens_per_tile(device: torch.device, dtype: torch.dtype, group_size: int, head_dim: int) -> int:
    """New tokens of a request the kernel takes at once; 0 where it does not apply or could not be built."""
    applies = why_not(device, dtype, group_size, head_dim) is None
    return min(MAX_TILE_TOKENS, MAX_ROWS // group_size) if applies else 0


def why_not(device: torch.device, dtype: torch.dtype, group_size: int, head_dim: int) -> str | None:
    """Why the kernel does not run on such a model, None where it does."""
    if head_dim > MAX_HEAD_DIM:
        return f"a head has {head_dim} dimensions, more than {MAX_HEAD_DIM}"
    if group_size > MAX_ROWS:
        return f"{group_size} heads share keys, more than {MAX_ROWS}"
    return native.why_not(LIBRARY, device, dtype)
