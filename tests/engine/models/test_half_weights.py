"""Checkpoints in bfloat16 and float16: their weights stay 16 bits wide, and outputs are those of
fp32 on them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from compiled import need_kernels, without_kernels
from gguf import GGMLQuantizationType
from saved_models import load_saved, save_model, stock_logits
from transformers import AutoModelForCausalLM

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.kernels.cpu import decoder_layer, quantized_linear
from smartspec.engine.models.decoder_layer import FusedDecoderLayer
from smartspec.engine.models.half_weights import TYPES
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.models.quantized import block_types

WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "initializer_range": 0.2}
TEXT = np.random.default_rng(0).integers(3, 32, 60).astype(np.int32)


@pytest.fixture(autouse=True)
def kernels():
    need_kernels(quantized_linear.LIBRARY, decoder_layer.LIBRARY)


def save_in(folder: Path, dtype: torch.dtype, model_type: str = "llama", **changes: object) -> Path:
    save_model(folder, model_type, **WIDE | changes)
    AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    return folder


def logits_of_ours(folder: Path, **options: str) -> torch.Tensor:
    runner = ModelRunner(load_saved(folder, **options), num_slots=1, max_len=len(TEXT))
    first, last = TEXT[:41], TEXT[41:]
    return torch.cat(
        [
            runner.forward([Segment(0, 0, first, 41)]),
            runner.forward([Segment(0, 41, last, len(last))]),
        ]
    )


def assert_same_logits(folder: Path, tolerance: float) -> None:
    """tolerance: of the largest logit."""
    expected = stock_logits(folder, TEXT)
    torch.testing.assert_close(
        logits_of_ours(folder), expected, rtol=0, atol=tolerance * float(expected.abs().max())
    )


# gemma3_text: its embedding multiplies with a buffer made in the model's dtype.
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("model_type", "dtype"), [("llama", torch.float16), ("gemma3_text", torch.bfloat16)]
)
def test_weights_stay_as_they_are_and_everything_else_is_fp32(tmp_path, dtype, tied, model_type):
    folder = save_in(tmp_path, dtype, model_type, tie_word_embeddings=tied, hidden_size=96)
    loaded = load_saved(folder)
    assert block_types(loaded.model) == {TYPES[dtype]} and loaded.dtype is torch.float32
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert all(isinstance(layer, FusedDecoderLayer) for layer in loaded.model.model.layers)
    head, embedding = loaded.model.lm_head.parts[0], loaded.model.model.embed_tokens.quantized
    assert (head.blocks.data_ptr() == embedding.blocks.data_ptr()) == tied
    assert_same_logits(folder, 1e-5)


@pytest.mark.parametrize("model_type", ["qwen3", "gpt2", "mixtral"])
def test_what_is_no_plain_module_computes_in_fp32(tmp_path, model_type):
    folder = save_in(tmp_path, torch.bfloat16, model_type, num_local_experts=4)
    assert_same_logits(folder, 1e-4)


def test_odd_widths_stay_in_rows(tmp_path):
    folder = save_in(tmp_path, torch.bfloat16, intermediate_size=51)
    assert_same_logits(folder, 1e-5)


def test_a_dtype_by_name_rounds_weights_or_widens_them(tmp_path):
    folder = save_in(tmp_path, torch.float32)
    loaded = load_saved(folder, dtype="float16")
    assert block_types(loaded.model) == {GGMLQuantizationType.F16} and loaded.activations == "fp32"
    save_in(tmp_path, torch.bfloat16)
    loaded = load_saved(folder, dtype="float32")
    assert block_types(loaded.model) == set() and loaded.model.dtype is torch.float32


def test_bfloat16_by_name_rounds_inputs_where_the_processor_multiplies_it(tmp_path):
    folder = save_in(tmp_path, torch.bfloat16)
    loaded = load_saved(folder, dtype="bfloat16")
    assert (loaded.activations == "bfloat16") == quantized_linear.can_round(
        GGMLQuantizationType.BF16, 64
    )
    assert all(isinstance(layer, FusedDecoderLayer) for layer in loaded.model.model.layers)
    expected, ours = stock_logits(folder, TEXT), logits_of_ours(folder, dtype="bfloat16")
    coarse = stock_logits(folder, TEXT, torch.bfloat16)
    assert (ours - expected).norm() < (coarse - expected).norm(), (
        "nearer to fp32 than transformers in bfloat16"
    )


def test_without_kernels_everything_is_of_the_dtype(tmp_path, monkeypatch):
    folder = save_in(tmp_path, torch.bfloat16)
    without_kernels(monkeypatch)
    loaded = load_saved(folder, dtype="bfloat16")
    assert loaded.dtype is torch.bfloat16
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert load_saved(folder).dtype is torch.float32
