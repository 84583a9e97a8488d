"""What our kernels are given is checked before they get its address: each tensor, table and weight
that does not fit is refused by name, and heads that lie at random end no process."""

import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from compiled import need_kernels
from test_head_drafter import NUM_DRAFT_TOKENS, random_head
from tiny_models import SHAPE, VOCABULARY, tiny_llama

from smartspec.engine.attention.kv_cache import KVCache
from smartspec.engine.drafting.head.eagle3 import rotary_tables
from smartspec.engine.drafting.head.native_head import _Parts, _shape
from smartspec.engine.kernels.cpu.decoder_layer import LIBRARY, PlacedLayer
from smartspec.engine.kernels.cpu.head_pass import HeadPass
from smartspec.engine.kernels.cpu.panel_linear import to_panels, weight_of_panels
from smartspec.engine.kernels.cpu.quantized_linear import (
    dequantize,
    describe_panels,
    to_block_panels,
)
from smartspec.engine.kernels.cpu.shapes import LayerShape
from smartspec.engine.models.decoder_layer import FusedDecoderLayer, fuse_layers
from smartspec.engine.models.fusion import fuse
from smartspec.engine.models.linear import make_linear

SIZE, MAX_LEN = SHAPE["hidden_size"], 32


@pytest.fixture(autouse=True)
def kernels():
    need_kernels(LIBRARY)


def embedding(rows: int = VOCABULARY, size: int = SIZE) -> torch.nn.Embedding:
    return torch.nn.Embedding(rows, size).requires_grad_(False)


def parts(**variants: bool) -> _Parts:
    return _Parts(random_head(**variants), embedding())


def norm(size: int = SIZE, dtype: torch.dtype = torch.float32) -> torch.nn.RMSNorm:
    return torch.nn.RMSNorm(size, dtype=dtype)


def linear(outputs: int, inputs: int) -> torch.nn.Module:
    return make_linear(torch.zeros(outputs, inputs))


LIES = {
    "hidden_norm": (
        norm(SIZE - 1),
        r"attention norm must be .* of shape \(32,\) .* got torch.float32 of \(31,\)",
    ),
    "mlp_norm": (norm(dtype=torch.float64), "MLP norm must be .* got torch.float64"),
    "embed_norm": (norm(8), "embed_norm must be"),
    "norm": (norm(SIZE + 1), "final_norm must be"),
    "qkv": (
        linear(64, SIZE),
        r"query, key and value must be .* 64 outputs and 64 inputs, got \[\(64, 32\)\]",
    ),
    "out": (linear(SIZE, 16), "attention's output must be .* 32 outputs and 32 inputs"),
    "gate_up": (linear(95, SIZE), "gate and up must be .* 96 outputs and 32 inputs"),
    "down": (linear(SIZE, 47), "down must be .* 32 outputs and 48 inputs"),
    "fc": (linear(8, 64), r"combine must be of shape \(32, 64\), got \(8, 64\)"),
    "lm_head": (linear(NUM_DRAFT_TOKENS, 8), r"lm_head must be of shape \(40, 32\), got \(40, 8\)"),
    "embedding": (embedding(size=2048), r"embedding must be of shape \(61, 32\), got \(61, 2048\)"),
    "embedding of too few": (embedding(rows=3), "target_ids must lie in 0 to 2, got 0 to 60"),
    "target_ids": (torch.zeros(39, dtype=torch.int64), r"target_ids must be .* of shape \(40,\)"),
    "target_ids of another dtype": (
        torch.zeros(40, dtype=torch.int32),
        "target_ids must be .* got torch.int32",
    ),
    "target_ids below 0": (torch.full((40,), -1), "target_ids must lie in 0 to 60, got -1 to -1"),
    "all_taps_norm": (torch.zeros(63), "all_taps_norm must be"),
    "tap_norms": (torch.zeros(128)[::2], "tap_norms must be .* not contiguous"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_part_of_a_head_that_does_not_fit_is_refused_by_name(name):
    made, (part, message) = parts(), LIES[name]
    made.for_kernel()
    setattr(made, name.split(" ")[0], part)
    with pytest.raises(ValueError, match=message):
        made.for_kernel()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_kv_heads": 3}, "4 heads over 3 key heads"),
        ({"num_kv_heads": 0}, "num_kv_heads is 0, it must be 1 at least"),
        ({"hidden_size": -32}, "hidden_size is -32"),
        ({"head_dim": 7}, "head_dim is 7, it must be even and 256 at most"),
        ({"head_dim": 258}, "head_dim is 258, it must be even and 256 at most"),
        ({"rotary_width": 10}, "rotary_width is 10, it must be even and 8 at most"),
        ({"num_heads": 514}, "514 heads over 2 key heads: .* 256 at most"),
    ],
)
def test_a_shape_that_no_kernel_computes_is_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        LayerShape(SIZE, 48, 4, 2, 8)._replace(**sizes).check()


def head_pass(**changes: torch.Tensor) -> HeadPass:
    made = parts()
    cache = KVCache(
        num_layers=1,
        num_slots=2,
        num_kv_heads=2,
        max_len=MAX_LEN,
        head_dim=8,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    cosine, sine = rotary_tables(made.config.layer, MAX_LEN)
    given = {
        "keys": cache.keys[0],
        "values": cache.values[0],
        "features": torch.zeros(2, MAX_LEN, 2 * SIZE),
        "cosine": cosine,
        "sine": sine,
    }
    made_pass = HeadPass(made.for_kernel(), _shape(made.config), 8, **(given | changes))
    made_pass.keep = made, cache, given
    return made_pass


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("keys", torch.zeros(2, 1, MAX_LEN, 8)),
        ("values", torch.zeros(2, 2, MAX_LEN - 1, 8)),
        ("features", torch.zeros(2, MAX_LEN, 2 * SIZE - 1)),
        ("features", torch.zeros(1, MAX_LEN, 2 * SIZE)),
        ("features", torch.zeros(2, MAX_LEN, 2 * SIZE, dtype=torch.float64)),
        ("cosine", torch.zeros(MAX_LEN, 4)),
        ("sine", torch.zeros(MAX_LEN - 1, 8)),
    ],
)
def test_memory_of_a_head_that_does_not_fit_is_refused_by_name(name, tensor):
    with pytest.raises(ValueError, match=f"{name}.* must be contiguous"):
        head_pass(**{name: tensor})


@pytest.mark.parametrize("token_id", [-1, VOCABULARY, 2**31 - 1])
def test_tokens_that_the_embedding_lacks_are_refused(token_id):
    tiles, rows = np.array([[0, 0, 0, 1, -1]], dtype=np.int64), np.array([0], dtype=np.int64)
    made = head_pass()
    assert made.run(tiles, None, np.array([VOCABULARY - 1], dtype=np.int32), None, rows, 3)[
        0
    ].shape == (1, 3)
    with pytest.raises(ValueError, match=rf"token ids must lie in 0 to 60, got \[{token_id}\]"):
        made.run(tiles, None, np.array([token_id], dtype=np.int32), None, rows, 3)


def test_a_target_whose_parts_or_cache_do_not_fit_is_refused():
    model = tiny_llama()
    fuse(model)
    assert fuse_layers(model) == 2
    layer = model.model.layers[0]
    assert isinstance(layer, FusedDecoderLayer)
    keys, short = torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 8, 6)
    PlacedLayer.of(layer._native, layer.shape, keys, keys, None, 1.0)
    with pytest.raises(ValueError, match=r"values must be .* of shape \(1, 2, 8, 8\)"):
        PlacedLayer.of(layer._native, layer.shape, keys, short, None, 1.0)
    with pytest.raises(ValueError, match="a window is -5 tokens"):
        PlacedLayer.of(layer._native, layer.shape, keys, keys, -5, 1.0)
    layer._norms[2].weight = torch.nn.Parameter(torch.zeros(SIZE - 1), requires_grad=False)
    with pytest.raises(ValueError, match="MLP norm must be"):
        layer.describe()


def test_panels_of_another_size_than_told_are_refused():
    panels = to_panels(torch.zeros(70, 32))
    weight = weight_of_panels(panels, None, 70)
    with pytest.raises(ValueError, match="panels must be"):
        weight_of_panels(panels, None, 70 + panels.shape[2])
    with pytest.raises(ValueError, match="bias must be"):
        weight_of_panels(panels, torch.zeros(69), 70)
    with pytest.raises(ValueError, match="cannot be looked up"):
        dequantize(weight)
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = to_block_panels(
        torch.from_numpy(gguf.quantize(np.zeros((70, 64), np.float32), kind)), kind
    )
    described = describe_panels(blocks, kind, 70)
    for row in (-1, 70):
        with pytest.raises(IndexError, match=f"rows must lie in 0 to 69, got {row} to {row}"):
            dequantize(described, torch.tensor([row]))
    with pytest.raises(ValueError, match="panels must be"):
        describe_panels(blocks, kind, 70 + panels.shape[2])
    with pytest.raises(ValueError, match="panels must be"):
        describe_panels(blocks[:, :-1].contiguous(), kind, 70)


@pytest.mark.slow
def test_heads_that_lie_at_random_end_no_process():
    """In a process of its own: memory out of bounds would end it."""
    here, count = Path(__file__).parents[1], 400
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", here / "lying_heads.py", "1", str(count)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == count and all(line.startswith(("refused: ", "drafted ")) for line in lines)
    assert any(line.startswith("drafted") for line in lines) and any(
        line.startswith("refused") for line in lines
    )
