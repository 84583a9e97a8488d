"""Checkpoints in floats whose weights are rounded to blocks on load."""

from pathlib import Path

import gguf
import pytest
import torch
from compiled import need_kernels
from saved_models import save_model
from transformers import AutoModelForCausalLM

from smartspec.engine.kernels.cpu import native
from smartspec.engine.kernels.cpu.quantized_linear import LIBRARY
from smartspec.engine.models import quantize
from smartspec.engine.models.load import load_model
from smartspec.engine.models.quantized import QuantizedEmbedding, QuantizedLinear, block_types


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    need_kernels(LIBRARY)
    monkeypatch.setenv("SMARTSPEC_CACHE", str(tmp_path / "cache"))


def rounded(folder: Path, kind: gguf.GGMLQuantizationType) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for parameter in {id(p): p for p in model.parameters()}.values():
            if parameter.dim() == 2 and parameter.shape[1] % 32 == 0:
                parameter.copy_(torch.from_numpy(gguf.dequantize(gguf.quantize(parameter.numpy(), kind), kind)))
    return model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_logits_are_those_of_the_rounded_weights(tmp_path: Path, quantization: str, tied: bool):
    folder = save_model(tmp_path, tie_word_embeddings=tied, intermediate_size=80)  # down_proj keeps its floats: 80 wide
    token_ids = torch.randint(0, 32, (1, 9), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = rounded(folder, quantize.TYPES[quantization])(token_ids).logits
        model = load_model(str(folder), device="cpu", quantization=quantization).model
        assert block_types(model) == {quantize.TYPES[quantization]}
        model.set_attn_implementation("sdpa")
        torch.testing.assert_close(model(token_ids).logits, expected, rtol=1e-4, atol=1e-5)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert isinstance(head, QuantizedLinear) and isinstance(embedding, QuantizedEmbedding)
    assert (head.parts[0].blocks.data_ptr() == embedding.quantized.blocks.data_ptr()) == tied


def test_weights_are_rounded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = save_model(tmp_path)
    first = load_model(str(folder), device="cpu", quantization="int8").model.lm_head.parts[0].blocks
    monkeypatch.setattr(quantize.gguf, "quantize", lambda *a: pytest.fail("rounded twice"))
    assert torch.equal(load_model(str(folder), device="cpu", quantization="int8").model.lm_head.parts[0].blocks, first)


def test_a_changed_checkpoint_is_rounded_anew(tmp_path: Path):
    folder = save_model(tmp_path)
    load_model(str(folder), device="cpu", quantization="int8")
    save_model(tmp_path, hidden_size=64)
    assert load_model(str(folder), device="cpu", quantization="int8").model.lm_head.in_features == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int3"}, "unknown quantization 'int3': use auto, none, int8, int4"),
        ({"quantization": "int8", "dtype": "bfloat16"}, "either of dtype torch.bfloat16 or in blocks of 'int8'"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        load_model(str(tmp_path), device="cpu", **options)


def test_a_machine_without_kernels_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "load_kernels", lambda name: native.Kernels(None, "this machine has none"))
    with pytest.raises(ValueError, match="this machine has none"):
        load_model(str(tmp_path), device="cpu", quantization="int4")
