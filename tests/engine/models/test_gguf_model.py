"""Models on a GGUF file's blocks compute exactly what transformers computes on the dequantised
weights."""

from pathlib import Path

import pytest
import torch
from compiled import need_kernels
from gguf_llama import CONFIG, write_llama
from saved_models import load_saved, save_tokenizer
from transformers import LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from smartspec.engine.kernels.cpu.quantized_linear import LIBRARY
from smartspec.engine.models import checkpoint, gguf_model
from smartspec.engine.models.fusion import fuse
from smartspec.engine.models.gguf_file import open_gguf
from smartspec.engine.models.gguf_model import read_gguf_model
from smartspec.engine.models.quantized import (
    PanelWeight,
    block_types,
    lay_out_by_panels,
    unpacked,
    weight_bytes,
)
from smartspec.engine.models.unsupported import UnsupportedModelError

MIXED = {
    "attn_v": "Q6_K",
    "attn_q": "Q4_K",
    "attn_k": "Q4_K",
    "ffn_down": "Q5_K",
    "token_embd": "Q8_0",
    "ffn_up": "F16",
}
PLAIN = {name: "F32" for name in ("attn_q", "attn_v", "ffn_gate", "token_embd")}


@pytest.fixture(autouse=True)
def kernels():
    need_kernels(LIBRARY)


def dequantized(path: Path) -> LlamaForCausalLM:
    model = LlamaForCausalLM(CONFIG)
    weights = load_gguf_checkpoint(
        path, return_tensors=True, model_to_load=model, torch_dtype=torch.float32
    )["tensors"]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def assert_near(logits: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * float(expected.std()))


@pytest.mark.parametrize("types", [{}, MIXED, PLAIN], ids=["Q4_1", "mixed", "some in fp32"])
def test_logits_are_those_of_the_dequantised_model(tmp_path, types):
    path = write_llama(tmp_path / "model.gguf", types)
    token_ids = torch.arange(40).view(1, -1) % CONFIG.vocab_size
    with torch.inference_mode():
        expected = dequantized(path)(token_ids).logits
        model = read_gguf_model(open_gguf(path), CONFIG, "sdpa")
        with unpacked(model):
            torch.testing.assert_close(model(token_ids).logits, expected, rtol=0, atol=0)
        # layers whose blocks differ in type are joined too, but not those in blocks and others
        assert fuse(model)["mlps"] == (0 if types is PLAIN else CONFIG.num_hidden_layers)
        assert_near(model(token_ids).logits, expected)
        lay_out_by_panels(model)
        assert_near(model(token_ids).logits, expected)


def test_the_memory_is_that_of_the_file(tmp_path):
    file = open_gguf(write_llama(tmp_path / "model.gguf", MIXED))
    model = read_gguf_model(file, CONFIG, "sdpa")
    assert weight_bytes(model) == sum(tensor.num_bytes for tensor in file.tensors.values())
    fuse(model)
    assert weight_bytes(model) == sum(tensor.num_bytes for tensor in file.tensors.values())


def test_a_file_without_all_weights(tmp_path):
    file = open_gguf(write_llama(tmp_path / "model.gguf", {}))
    del file.tensors["blk.1.ffn_up.weight"]
    with pytest.raises(
        UnsupportedModelError,
        match=r"it lacks 1 weights, 'model.layers.1.mlp.up_proj.weight' among",
    ):
        read_gguf_model(file, CONFIG, "sdpa")


def test_a_model_of_another_shape(tmp_path):
    config = type(CONFIG)(**{**CONFIG.to_dict(), "intermediate_size": 768})
    with pytest.raises(ValueError, match=r"'blk.0.ffn_\w+.weight' has shape"):
        read_gguf_model(open_gguf(write_llama(tmp_path / "model.gguf", {})), config, "sdpa")


def test_laid_out_by_panels_a_shared_weight_stays_one_and_the_memory_the_same(tmp_path):
    model = read_gguf_model(open_gguf(write_llama(tmp_path / "model.gguf", {})), CONFIG, "sdpa")
    fuse(model)
    before = weight_bytes(model)
    lay_out_by_panels(model)
    assert weight_bytes(model) == before
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert head.parts[0] is embedding.quantized and isinstance(embedding.quantized, PanelWeight)
    lay_out_by_panels(model)
    assert head.parts[0] is embedding.quantized and weight_bytes(model) == before


def test_a_file_is_served_in_blocks_or_unpacked(tmp_path, monkeypatch, caplog):
    path = write_llama(tmp_path / "model.gguf", MIXED)
    CONFIG.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    monkeypatch.setattr(checkpoint, "configuration_folder", lambda file, values: tmp_path)
    token_ids = torch.arange(9).view(1, -1)

    def logits(**options: str) -> tuple[torch.Tensor, bool]:
        model = load_saved(path, activations="fp32", **options).model
        model.set_attn_implementation("sdpa")
        return model(token_ids).logits, bool(block_types(model))

    with torch.inference_mode():
        expected, in_blocks = logits()
        assert in_blocks and not caplog.text
        monkeypatch.setattr(gguf_model, "ROWWISE", ())
        for options, reason in (
            ({"quantization": "none"}, ""),
            ({}, "transformers rearranges those of 'llama' models"),
        ):
            unpacked_logits, in_blocks = logits(**options)
            assert not in_blocks and reason in caplog.text
            assert_near(unpacked_logits, expected)
