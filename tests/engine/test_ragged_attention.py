"""Our attention kernel against torch's, over contexts longer than its blocks and spans."""

import numpy as np
import pytest
import torch

from smartspec.engine.attention.ragged import Segment, _make_tiles
from smartspec.engine.kernels.cpu.ragged_attention import MAX_TILE_TOKENS, max_tokens_per_tile, ragged_attention

MAX_LEN = 700
# (slot, tokens in the cache, new tokens): a chunk over several tiles and spans, a draft, decoding, a fresh prompt
CASES = [(2, 300, 150), (0, 129, 9), (3, 640, 1), (1, 0, 70)]


def expected(query, keys, values, slot, start, num_tokens, window):
    """[num_heads, num_tokens, head_dim] by torch, with an explicit mask."""
    end = start + num_tokens
    key_positions, positions = torch.arange(end), torch.arange(start, end)[:, None]
    visible = key_positions <= positions
    if window is not None:
        visible &= key_positions > positions - window
    group_size = query.shape[0] // keys.shape[1]
    key, value = (cache[slot, :, :end].repeat_interleave(group_size, dim=0) for cache in (keys, values))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=0.3)


@pytest.mark.parametrize("window", [None, 1, 40, 200])
@pytest.mark.parametrize(("num_kv_heads", "group_size", "head_dim"), [(3, 3, 64), (2, 1, 128), (1, 8, 40), (2, 5, 256)])
def test_every_query_sees_what_torch_says_it_sees(num_kv_heads, group_size, head_dim, window):
    tile_tokens = max_tokens_per_tile(torch.device("cpu"), torch.float32, group_size, head_dim)
    assert 0 < tile_tokens <= MAX_TILE_TOKENS, "this test needs a C compiler"
    generator = torch.Generator().manual_seed(0)
    shape = (4, num_kv_heads, MAX_LEN, head_dim)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    segments = [Segment(slot, start, np.zeros(n, dtype=np.int32), 1) for slot, start, n in CASES]
    num_tokens = sum(segment.num_tokens for segment in segments)
    heads = torch.randn(num_tokens, (group_size + 2) * num_kv_heads, head_dim, generator=generator).transpose(0, 1)
    query, key, value = heads.split([group_size * num_kv_heads, num_kv_heads, num_kv_heads])
    output = torch.empty(num_tokens, group_size * num_kv_heads, head_dim)
    tiles = torch.tensor(_make_tiles(segments, tile_tokens))
    ragged_attention(query, key, value, keys, values, output, tiles, 0.3, window)
    row = 0
    for slot, start, n in CASES:
        rows = slice(row, row + n)
        torch.testing.assert_close(keys[slot, :, start : start + n], key[:, rows], rtol=0, atol=0)
        torch.testing.assert_close(values[slot, :, start : start + n], value[:, rows], rtol=0, atol=0)
        wanted = expected(query[:, rows], keys, values, slot, start, n, window)
        torch.testing.assert_close(output[rows].transpose(0, 1), wanted, rtol=1e-5, atol=1e-5)
        row += n


def test_scores_far_apart_do_not_overflow():
    """One key wins by hundreds, another is as good: weights are exactly 1/2 each, or 1."""
    keys, values = torch.zeros(1, 1, 256, 64), torch.arange(256.0).repeat_interleave(64).view(1, 1, 256, 64).clone()
    keys[0, 0, [3, 200]] = 100.0
    query, output = torch.ones(2, 1, 64).transpose(0, 1), torch.empty(2, 1, 64)
    new_key, new_value = torch.full((1, 2, 64), -100.0), torch.full((1, 2, 64), 7.0)
    tiles = torch.tensor([(0, 150, 0, 1), (0, 254, 1, 1)])
    ragged_attention(query, new_key, new_value, keys, values, output, tiles, 1.0, None)
    assert output[:, 0, 0].tolist() == [3.0, 101.5]
