"""Our attention kernel against attention in fp64, over contexts longer than its blocks and
spans."""

import numpy as np
import pytest
import torch
from compiled import need_kernels

from smartspec.engine.attention.ragged import Segment, make_tiles
from smartspec.engine.attention.sparse_window import SparseWindow
from smartspec.engine.kernels.cpu.ragged_attention import (
    LIBRARY,
    MAX_TILE_TOKENS,
    CachedLayer,
    Heads,
    max_tokens_per_tile,
    ragged_attention,
)

MAX_LEN = 700
# (slot, tokens in the cache, new tokens): a chunk over several tiles and spans, a draft, decoding,
# a fresh prompt
CASES = [(2, 300, 150), (0, 129, 9), (3, 640, 1), (1, 0, 70)]


SCALE = 0.3
ROUNDING = 2.0**-24  # largest relative error of one fp32 operation


@pytest.fixture(autouse=True)
def kernels():
    need_kernels(LIBRARY)


def expected(query, keys, values, slot, start, num_tokens, window, sparse=None):
    """[num_heads, num_tokens, head_dim] in fp64, and how far fp32 may be from it, of the same
    shape.

    Errors of a sum of n terms grow as 6 sqrt(n) ROUNDING sum |terms|, but for one in 10^7 (Higham
    and Mary 2019, doi.org/10.1137/18M1226312, theorem 2.4). A score's error is a weight's relative
    one, beside that of exp, and a weight counts in both the sum of values and the sum it is divided
    by.
    """
    end = start + num_tokens
    key_positions, positions = torch.arange(end), torch.arange(start, end)[:, None]
    visible = key_positions <= positions
    if window is not None:
        visible &= key_positions > positions - window
    elif sparse is not None:
        visible &= (key_positions > positions - sparse.window) | (key_positions < sparse.sinks)
    query, group_size, head_dim = query.double(), query.shape[0] // keys.shape[1], query.shape[2]
    key, value = (
        cache[slot, :, :end].double().repeat_interleave(group_size, dim=0)
        for cache in (keys, values)
    )
    scores = (SCALE * query @ key.mT).masked_fill(~visible, -torch.inf)
    weights = scores.softmax(dim=-1)
    distance = (scores.amax(dim=-1, keepdim=True) - scores).masked_fill(~visible, 0.0)
    weight_errors = weights * (
        6 * head_dim**0.5 * SCALE * query.abs() @ key.abs().mT + 2 * distance + 8
    )
    sums = (6 * end**0.5 + 4) * weights @ value.abs()
    output = weights @ value
    allowed = (
        weight_errors @ value.abs()
        + weight_errors.sum(dim=-1, keepdim=True) * output.abs()
        + 2 * sums
    )
    return output, ROUNDING * allowed


@pytest.mark.parametrize(
    ("window", "sparse"),
    [
        *((window, None) for window in (None, 1, 40, 200)),
        *(
            (None, SparseWindow(*sizes))
            for sizes in ((4, 1), (4, 64), (1, 200), (33, 31), (150, 100), (200, 600))
        ),
        (40, SparseWindow(4, 16)),
    ],
)
@pytest.mark.parametrize(
    ("num_kv_heads", "group_size", "head_dim"), [(3, 3, 64), (2, 1, 128), (1, 8, 40), (2, 5, 256)]
)
def test_every_query_sees_what_torch_says_it_sees(
    num_kv_heads, group_size, head_dim, window, sparse
):
    tile_tokens = max_tokens_per_tile(torch.device("cpu"), torch.float32, group_size, head_dim)
    assert 0 < tile_tokens <= MAX_TILE_TOKENS
    generator = torch.Generator().manual_seed(0)
    shape = (4, num_kv_heads, MAX_LEN, head_dim)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    segments = [
        Segment(slot, start, np.zeros(n, dtype=np.int32), 1, sparse=sparse)
        for slot, start, n in CASES
    ]
    num_tokens = sum(segment.num_tokens for segment in segments)
    heads = torch.randn(
        num_tokens, (group_size + 2) * num_kv_heads, head_dim, generator=generator
    ).transpose(0, 1)
    query, key, value = heads.split([group_size * num_kv_heads, num_kv_heads, num_kv_heads])
    output = torch.empty(num_tokens, group_size * num_kv_heads, head_dim)
    tiles = torch.from_numpy(make_tiles(segments, tile_tokens))
    ragged_attention(
        Heads(query, key, value), CachedLayer(keys, values), output, tiles, SCALE, window
    )
    row = 0
    for slot, start, n in CASES:
        rows = slice(row, row + n)
        torch.testing.assert_close(keys[slot, :, start : start + n], key[:, rows], rtol=0, atol=0)
        torch.testing.assert_close(
            values[slot, :, start : start + n], value[:, rows], rtol=0, atol=0
        )
        wanted, allowed = expected(query[:, rows], keys, values, slot, start, n, window, sparse)
        share = ((output[rows].transpose(0, 1) - wanted).abs() / allowed).max().item()
        assert share <= 1.0, f"slot {slot}: {share:.3g} times what rounding may do"
        row += n


def test_scores_far_apart_do_not_overflow():
    """One key wins by hundreds, another is as good: weights are 1/2 each, or 1, and what is divided
    is rounded."""
    keys, values = (
        torch.zeros(1, 1, 256, 64),
        torch.arange(256.0).repeat_interleave(64).view(1, 1, 256, 64).clone(),
    )
    keys[0, 0, [3, 200]] = 100.0
    query, output = torch.ones(2, 1, 64).transpose(0, 1), torch.empty(2, 1, 64)
    new_key, new_value = torch.full((1, 2, 64), -100.0), torch.full((1, 2, 64), 7.0)
    tiles = torch.tensor([(0, 150, 0, 1, -1, 0, 0), (0, 254, 1, 1, -1, 0, 0)])
    ragged_attention(
        Heads(query, new_key, new_value), CachedLayer(keys, values), output, tiles, 1.0, None
    )
    assert output[:, 0, 0].tolist() == pytest.approx([3.0, 101.5], rel=4 * ROUNDING)
