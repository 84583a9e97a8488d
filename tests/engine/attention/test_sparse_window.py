"""A pass that sees sinks and a window: what transformers computes with such a mask, and nothing
else is read."""

import numpy as np
import pytest
import torch
from compiled import need_kernels
from fused_models import fused_model, runner_of
from tiny_models import (
    KERNEL_AND_TORCH,
    VOCABULARY,
    assert_near,
    plain_logits,
    tiny_llama,
    tiny_mistral,
    tiny_runner,
)

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.attention.sparse_window import SparseWindow
from smartspec.engine.kernels.cpu.ragged_attention import LIBRARY
from smartspec.engine.models.decoder_layer import fuse_layers
from smartspec.engine.models.fused_pass import fused_pass
from smartspec.engine.models.model_runner import ModelRunner

SPARSE = SparseWindow(sinks=4, window=20)
LENGTH, NUM_SPARSE = 100, 7  # tokens of the text, and its last ones that see little
TEXT = np.random.default_rng(0).integers(0, VOCABULARY, LENGTH, dtype=np.int32)


def drafted(runner: ModelRunner, slot: int, size: int = 1) -> torch.Tensor:
    """Logits of the last tokens of the text, so many in a pass; what is before them is in the
    cache."""
    start = LENGTH - NUM_SPARSE
    parts = [range(first, min(first + size, LENGTH)) for first in range(start, LENGTH, size)]
    segments = [
        Segment(slot, part.start, TEXT[part.start : part.stop], len(part), sparse=SPARSE)
        for part in parts
    ]
    return torch.cat([runner.forward([segment]).clone() for segment in segments])


@KERNEL_AND_TORCH
@pytest.mark.parametrize("size", [1, 3, NUM_SPARSE])
def test_it_computes_what_transformers_does_with_that_mask(tile_tokens, size):
    runner = tiny_runner(tiny_llama(), tile_tokens)
    runner.forward([Segment(1, 0, TEXT[:-NUM_SPARSE], 0)])
    places, queries = torch.arange(LENGTH), torch.arange(LENGTH)[:, None]
    visible = places <= queries
    visible[-NUM_SPARSE:] &= ((places < 4) | (places > queries - 20))[-NUM_SPARSE:]
    mask = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(~visible, torch.finfo(torch.float32).min)
    eager = tiny_llama(attention="eager")
    wanted, plain = plain_logits(eager, TEXT, attention_mask=mask), plain_logits(eager, TEXT)
    found = drafted(runner, 1, size)
    assert_near(found, wanted[-NUM_SPARSE:])
    assert (found - plain[-NUM_SPARSE:]).abs().max() > 0.1


@KERNEL_AND_TORCH
def test_a_layer_with_a_window_of_its_own_keeps_it(tile_tokens):
    runner = tiny_runner(tiny_mistral(sliding_window=30), tile_tokens)
    runner.forward([Segment(slot, 0, TEXT[:-NUM_SPARSE], 0) for slot in (0, 1)])
    wanted = runner.forward([Segment(0, LENGTH - NUM_SPARSE, TEXT[-NUM_SPARSE:], NUM_SPARSE)])
    assert_near(drafted(runner, 1), wanted)


@KERNEL_AND_TORCH
def test_what_lies_between_sinks_and_window_is_not_read(tile_tokens):
    """Other keys and values there change no bit; others among the sinks or in the window change the
    logits."""
    runner = tiny_runner(tiny_llama(), tile_tokens)
    runner.forward([Segment(1, 0, TEXT[:-NUM_SPARSE], 0)])
    expected = drafted(runner, 1)
    first_seen = LENGTH - NUM_SPARSE + 1 - SPARSE.window
    for places, is_seen in (
        (slice(SPARSE.sinks, first_seen), False),
        (slice(3, 4), True),
        (slice(85, 86), True),
    ):
        for cached in (*runner.cache.keys, *runner.cache.values):
            cached[1, :, places] += 3.0
        assert torch.equal(drafted(runner, 1), expected) != is_seen


@pytest.mark.parametrize("in_layers", [False, True])
def test_a_row_has_the_same_bits_in_every_pass(in_layers):
    """Alone, with the next tokens of its text, and beside requests that see all or little of longer
    texts."""
    need_kernels(LIBRARY)
    sparse, random = SparseWindow(4, 64), np.random.default_rng(1)
    model = fused_model("llama", head_dim=64, max_position_embeddings=1024)
    if in_layers:
        assert fuse_layers(model) == 2
    runner = runner_of(model, fused_pass(model), max_len=700)
    texts = [random.integers(0, VOCABULARY, length, dtype=np.int32) for length in (600, 333, 640)]
    runner.forward([Segment(slot, 0, text, 0) for slot, text in enumerate(texts)])
    new = random.integers(0, VOCABULARY, 12, dtype=np.int32)
    one_by_one = [
        runner.forward([Segment(1, 333 + i, new[i : i + 1], 1, sparse=sparse)]).clone()
        for i in range(12)
    ]
    together = runner.forward([Segment(1, 333, new, 12, sparse=sparse)]).clone()
    beside = runner.forward(
        [
            Segment(0, 600, new[:5], 5),
            Segment(1, 333, new[:7], 7, sparse=sparse),
            Segment(2, 640, new[:3], 3, sparse=sparse),
        ]
    )[5:12]
    assert torch.equal(torch.cat(one_by_one), together)
    assert torch.equal(beside, together[:7])


@pytest.mark.parametrize("sizes", [(0, 20), (4, 0), (-1, 20), (4, -3)])
def test_sizes_that_are_not_positive_are_refused(sizes):
    with pytest.raises(ValueError, match="must be at least 1"):
        SparseWindow(*sizes)
