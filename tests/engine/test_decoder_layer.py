"""Decoder layers in one call against the modules they replace, on tiny random models over a ragged cache."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch
from compiled import need_kernels
from gguf import GGMLQuantizationType, quants
from tiny_models import as_loaded
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from smartspec.engine.attention.ragged import ATTENTION_NAME, Segment, register_attention
from smartspec.engine.attention.tree_mask import tree_mask
from smartspec.engine.kernels.cpu.decoder_layer import LIBRARY
from smartspec.engine.models.decoder_layer import FusedDecoderLayer, fuse_layers
from smartspec.engine.models.fusion import fuse
from smartspec.engine.models.linear import pack_linears
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.models.quantized import QuantizedLinear, QuantizedWeight

VOCABULARY = 61
Q4_0, Q4_1, Q5_1, Q8_0 = (GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_1", "Q8_0"))
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 36,
    "intermediate_size": 51,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "initializer_range": 0.3,
    "sliding_window": 7,  # of those that have one
}


@pytest.fixture(autouse=True)
def kernels():
    need_kernels(LIBRARY)


def stock_model(model_type: str, **changes: object) -> nn.Module:
    register_attention()
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **SIZES | changes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:  # all ones or zeros as made
            parameter.normal_(0.5, 0.5)
    return model


def prepare(model: nn.Module) -> nn.Module:
    fuse(model)
    pack_linears(model)
    return model


def fused_model(model_type: str, **changes: object) -> nn.Module:
    return prepare(stock_model(model_type, **changes))


def in_blocks(model_type: str, types: list[GGMLQuantizationType]) -> nn.Module:
    """Its linears in blocks of these types in turn, neighbours in different ones."""
    model = stock_model(model_type, hidden_size=64, intermediate_size=96, num_attention_heads=8, attention_bias=True)
    linears = {path: module for path, module in model.model.layers.named_modules() if type(module) is nn.Linear}
    for (path, linear), kind in zip(linears.items(), cycle(types), strict=False):
        blocks = torch.from_numpy(quants.quantize(linear.weight.numpy(), kind))
        model.model.layers.set_submodule(path, QuantizedLinear([QuantizedWeight(blocks, kind)], linear.bias))
    return prepare(model)


def runner_of(model: nn.Module) -> ModelRunner:
    config = model.config
    loaded = replace(as_loaded(model), head_dim=config.head_dim, num_heads=config.num_attention_heads)
    return ModelRunner(loaded, num_slots=4, max_len=64)


def random_passes(seed: int = 0) -> Iterator[list[Segment]]:
    """Chunks of prompts, single tokens, drafts that are rolled back and trees, of four requests."""
    random = np.random.default_rng(seed)
    starts = [0] * 4
    for _ in range(6):
        segments = []
        for slot in random.permutation(4)[: random.integers(1, 5)].tolist():
            tokens = random.integers(0, VOCABULARY, random.choice([1, 2, 5, 9])).astype(np.int32)
            parents = np.array([int(random.integers(-1, token)) for token in range(len(tokens))])
            tree = tree_mask(parents, starts[slot]) if random.random() < 0.5 else None
            segments.append(Segment(slot, starts[slot], tokens, int(random.integers(0, len(tokens) + 1)), tree))
            starts[slot] += int(random.integers(1, len(tokens) + 1))
        yield segments


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {}),
        ("llama", {"head_dim": 16, "num_attention_heads": 6}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_layers_in_one_call_compute_what_their_modules_do(model_type: str, changes: dict):
    model = fused_model(model_type, **changes)
    expected, actual = runner_of(model), runner_of(copy.deepcopy(model))
    assert fuse_layers(actual.loaded.model) == 2
    for segments in random_passes():
        torch.testing.assert_close(actual.forward(segments), expected.forward(segments), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual.cache._storage, expected.cache._storage, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("types", [[Q4_1], [Q8_0, Q4_0, Q5_1]], ids=["one type", "several"])
def test_weights_in_blocks_are_multiplied_as_their_modules_do(types: list[GGMLQuantizationType]):
    expected, actual = runner_of(in_blocks("llama", types)), runner_of(in_blocks("llama", types))
    assert fuse_layers(actual.loaded.model) == 2
    long = Segment(3, 0, np.arange(40, dtype=np.int32), 1)  # more rows than are multiplied block by block
    for segments in ([long], *random_passes(1)):
        torch.testing.assert_close(actual.forward(segments), expected.forward(segments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", ["gemma", "cohere", "olmo2", "phi", "granite"])
def test_layers_of_another_kind_stay(model_type: str):
    assert fuse_layers(fused_model(model_type, residual_multiplier=0.5)) == 0


def test_layers_that_differ_are_not_kept(monkeypatch: pytest.MonkeyPatch):
    model = fused_model("llama")
    forward = FusedDecoderLayer.forward
    monkeypatch.setattr(FusedDecoderLayer, "forward", lambda self, x, **rest: forward(self, x, **rest) * (1 + 1e-4))
    assert fuse_layers(model) == 0


def test_another_attention_implementation_keeps_its_modules():
    model = fused_model("llama")
    model.config._attn_implementation = "sdpa"
    assert fuse_layers(model) == 0


def test_without_our_attention_the_modules_compute():
    model = fused_model("llama")
    expected, actual = runner_of(model), runner_of(copy.deepcopy(model))
    fuse_layers(actual.loaded.model)
    actual.max_tile_tokens = expected.max_tile_tokens = 0
    for segments in random_passes():
        assert torch.equal(actual.forward(segments), expected.forward(segments))


def test_a_request_gets_the_same_bits_alone_and_beside_others_with_nan():
    """Request 1 may feed a token whose embedding is NaN: what the others get does not change by a bit."""
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
