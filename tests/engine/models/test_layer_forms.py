"""Layers of every form that has a kernel, as whole passes against transformers' own modules, on
tiny random models."""

import copy

import numpy as np
import pytest
import torch
from compiled import need_kernels
from fused_models import FORMS, VOCABULARY, prepare, random_passes, runner_of, stock_model
from tiny_models import assert_near, plain_logits

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.kernels.cpu.decoder_layer import LIBRARY
from smartspec.engine.models.decoder_layer import fuse_layers
from smartspec.engine.models.fused_pass import FusedPass, fused_pass

TEXT = np.random.default_rng(0).integers(0, VOCABULARY, 24, dtype=np.int32)


@pytest.fixture(autouse=True)
def kernels():
    need_kernels(LIBRARY)


def fused(stock: torch.nn.Module) -> tuple[torch.nn.Module, FusedPass]:
    """A copy of the model in layers, and its whole pass. Fails where one of them is not fused."""
    model = prepare(copy.deepcopy(stock))
    assert fuse_layers(model) == 2
    whole = fused_pass(model)
    assert whole is not None
    return model, whole


PLAIN: dict[str, tuple[str, dict[str, object]]] = {
    **{model_type: (model_type, {}) for model_type in ("llama", "mistral", "qwen2", "qwen3")},
    "wide heads": ("llama", {"head_dim": 16, "num_attention_heads": 6}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
}
ALL = pytest.mark.parametrize(
    ("model_type", "changes"), (PLAIN | FORMS).values(), ids=PLAIN | FORMS
)


@ALL
def test_a_whole_pass_is_transformers_own(model_type, changes):
    stock = stock_model(model_type, **changes)
    runner = runner_of(*fused(stock))
    stock.set_attn_implementation("eager")
    assert_near(runner.forward([Segment(1, 0, TEXT, len(TEXT))]), plain_logits(stock, TEXT))


@ALL
def test_chunks_drafts_and_trees_are_what_its_modules_compute(model_type, changes):
    stock = stock_model(model_type, **changes)
    model, whole = fused(stock)
    actual, expected = runner_of(model, whole, taps=(1, 2)), runner_of(prepare(stock), taps=(1, 2))
    for segments in random_passes():
        assert_near(actual.forward(segments), expected.forward(segments))
        for found, wanted in zip(actual.features, expected.features, strict=True):
            assert_near(found, wanted)
    assert_near(actual.cache._storage, expected.cache._storage)
