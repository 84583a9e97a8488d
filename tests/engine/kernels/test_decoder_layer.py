"""Decoder layers in one call against the modules they replace, on tiny random models over a ragged
cache."""

from itertools import cycle

import numpy as np
import pytest
import torch
from compiled import need_kernels
from fused_models import fused_model, prepare, random_passes, runner_of, stock_model
from gguf import GGMLQuantizationType, quants
from torch import nn

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.kernels.cpu.decoder_layer import LIBRARY
from smartspec.engine.models.decoder_layer import FusedDecoderLayer, fuse_layers
from smartspec.engine.models.quantized import QuantizedLinear, QuantizedWeight

Q4_0, Q4_1, Q5_1, Q8_0 = (GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_1", "Q8_0"))


@pytest.fixture(autouse=True)
def kernels():
    need_kernels(LIBRARY)


def in_blocks(model_type: str, types: list[GGMLQuantizationType]) -> nn.Module:
    """Its linears in blocks of these types in turn, neighbours in different ones."""
    model = stock_model(
        model_type, hidden_size=64, intermediate_size=96, num_attention_heads=8, attention_bias=True
    )
    linears = {
        path: module
        for path, module in model.model.layers.named_modules()
        if type(module) is nn.Linear
    }
    for (path, linear), kind in zip(linears.items(), cycle(types), strict=False):
        blocks = torch.from_numpy(quants.quantize(linear.weight.numpy(), kind))
        model.model.layers.set_submodule(
            path, QuantizedLinear([QuantizedWeight(blocks, kind)], linear.bias)
        )
    return prepare(model)


@pytest.mark.parametrize("types", [[Q4_1], [Q8_0, Q4_0, Q5_1]], ids=["one type", "several"])
def test_weights_in_blocks_are_multiplied_as_their_modules_do(types):
    expected, actual = runner_of(in_blocks("llama", types)), runner_of(in_blocks("llama", types))
    assert fuse_layers(actual.loaded.model) == 2
    # more rows than are multiplied block by block
    long = Segment(3, 0, np.arange(40, dtype=np.int32), 1)
    for segments in ([long], *random_passes(1)):
        torch.testing.assert_close(
            actual.forward(segments), expected.forward(segments), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("model_type", ["cohere", "glm4", "phi", "starcoder2"])
def test_layers_of_another_kind_stay(model_type):
    assert fuse_layers(fused_model(model_type)) == 0


def test_layers_that_differ_are_not_kept(monkeypatch):
    model = fused_model("llama")
    forward = FusedDecoderLayer.forward
    monkeypatch.setattr(
        FusedDecoderLayer, "forward", lambda self, x, **rest: forward(self, x, **rest) * (1 + 1e-4)
    )
    assert fuse_layers(model) == 0


def test_another_attention_implementation_keeps_its_modules():
    model = fused_model("llama")
    model.config._attn_implementation = "sdpa"
    assert fuse_layers(model) == 0


def test_a_request_gets_the_same_bits_alone_and_beside_others_with_nan():
    """Request 1 may feed a token whose embedding is NaN: what the others get does not change by a
    bit."""
    model = fused_model("llama")
    fuse_layers(model)
    model.get_input_embeddings().weight[5] = torch.nan
    alone, beside = runner_of(model), runner_of(model)
    text = np.arange(10, 40, dtype=np.int32)
    for start, end in ((0, 12), (12, 13), (13, 30)):
        mine = Segment(2, start, text[start:end], 1)
        bad = Segment(1, start, np.full(end - start, 5, dtype=np.int32), 1)
        other = Segment(0, 2 * start, np.tile(text[start:end], 2), 2)
        expected = alone.forward([mine])
        logits = beside.forward([bad, mine, other])
        assert logits[0].isnan().all() and not logits[1:].isnan().any()
        assert torch.equal(logits[1], expected[0])
