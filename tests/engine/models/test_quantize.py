"""Checkpoints in floats whose weights are rounded to blocks on load."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from compiled import need_kernels, without_kernels
from saved_models import load_saved, save_model
from transformers import AutoModelForCausalLM
from transformers.models.bart.modeling_bart import (
    BartLearnedPositionalEmbedding,
    BartScaledWordEmbedding,
)

from smartspec.engine.kernels.cpu.quantized_linear import LIBRARY
from smartspec.engine.models import quantize
from smartspec.engine.models.quantized import (
    QuantizedEmbedding,
    QuantizedLinear,
    block_types,
    scale_of_embedding,
)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    need_kernels(LIBRARY)
    monkeypatch.setenv("SMARTSPEC_CACHE", str(tmp_path / "cache"))


def rounded(folder: Path, kind: gguf.GGMLQuantizationType) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for parameter in {id(p): p for p in model.parameters()}.values():
            if parameter.dim() == 2 and parameter.shape[1] % 32 == 0:
                parameter.copy_(
                    torch.from_numpy(gguf.dequantize(gguf.quantize(parameter.numpy(), kind), kind))
                )
    return model


@pytest.mark.parametrize("model_type", ["llama", "gemma"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_logits_are_those_of_the_rounded_weights(tmp_path, quantization, tied, model_type):
    sizes = {"intermediate_size": 80}  # down_proj keeps its floats: 80 wide
    folder = save_model(tmp_path, model_type, tie_word_embeddings=tied, **sizes)
    token_ids = torch.randint(0, 32, (1, 9), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = rounded(folder, quantize.TYPES[quantization])(token_ids).logits
        model = load_saved(folder, quantization=quantization, activations="fp32").model
        assert block_types(model) == {quantize.TYPES[quantization]}
        model.set_attn_implementation("sdpa")
        torch.testing.assert_close(model(token_ids).logits, expected, rtol=1e-4, atol=1e-5)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert isinstance(head, QuantizedLinear) and isinstance(embedding, QuantizedEmbedding)
    assert (head.parts[0].blocks.data_ptr() == embedding.quantized.blocks.data_ptr()) == tied


def test_the_scale_of_an_embedding_in_bfloat16_is_not_rounded(tmp_path):
    folder = save_model(tmp_path, "gemma")
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    embedding = load_saved(folder, quantization="int8").model.get_input_embeddings()
    assert isinstance(embedding, QuantizedEmbedding) and embedding.scale == np.float32(32**0.5)


@pytest.mark.parametrize(
    ("embedding", "scale"),
    [
        (torch.nn.Embedding(9, 4), 1.0),
        (BartScaledWordEmbedding(9, 4, 0, embed_scale=1.7), 1.7),
        (BartLearnedPositionalEmbedding(9, 4), None),
        (torch.nn.Linear(4, 9), None),
    ],
)
def test_what_an_embedding_multiplies_by_is_found(embedding, scale):
    found = scale_of_embedding(embedding)
    assert found == (None if scale is None else pytest.approx(scale))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int3"}, "unknown quantization 'int3': use auto, none, int8, int4"),
        (
            {"quantization": "int8", "dtype": "bfloat16"},
            "either of dtype torch.bfloat16 or in blocks of 'int8'",
        ),
    ],
)
def test_options_that_cannot_be(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        load_saved(tmp_path, **options)


def test_a_machine_without_kernels_is_named(tmp_path, monkeypatch):
    without_kernels(monkeypatch)
    with pytest.raises(ValueError, match="this machine has none"):
        load_saved(tmp_path, quantization="int4")
