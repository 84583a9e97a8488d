"""Checkpoints in floats whose weights are rounded to blocks on load."""

import os
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from compiled import need_kernels, without_kernels
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from saved_models import load_saved, save_model
from transformers import AutoModelForCausalLM
from transformers.models.bart.modeling_bart import (
    BartLearnedPositionalEmbedding,
    BartScaledWordEmbedding,
)

from smartspec.engine.kernels.cpu.quantized_linear import LIBRARY, to_block_panels
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


def test_weights_are_rounded_once(tmp_path, monkeypatch):
    folder = save_model(tmp_path)
    first = load_int8(folder)
    monkeypatch.setattr(quantize.gguf, "quantize", lambda *a: pytest.fail("rounded twice"))
    assert torch.equal(load_int8(folder), first)


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


def quantized_cache(tmp_path: Path) -> set[Path]:
    return set((tmp_path / "cache" / "quantized").iterdir())


def load_int8(folder: Path) -> torch.Tensor:
    return load_saved(folder, quantization="int8").model.lm_head.parts[0].blocks


@pytest.mark.parametrize("what", ["our code", "gguf's code", "the weights"])
def test_blocks_of_other_code_or_other_weights_are_made_anew(tmp_path, monkeypatch, what):
    folder = save_model(tmp_path / "model")
    load_int8(folder)
    before = quantized_cache(tmp_path)
    if what == "the weights":  # of the same size and time, as rsync leaves them
        file = folder / "model.safetensors"
        facts, weights = file.stat(), load_file(file)
        save_file(
            {name: -tensor for name, tensor in weights.items()}, file, metadata={"format": "pt"}
        )
        os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        assert file.stat().st_size == facts.st_size and file.stat().st_mtime_ns == facts.st_mtime_ns
    else:
        changed = tmp_path / "changed.py"
        changed.write_text("# another version")
        module = quantize if what == "our code" else gguf.quants
        monkeypatch.setattr(module, "__file__", str(changed))
    expected = torch.from_numpy(gguf.quantize(lm_head_of(folder), quantize.TYPES["int8"]))
    blocks = load_int8(folder)
    assert len(quantized_cache(tmp_path) - before) == 1
    assert torch.equal(blocks, to_block_panels(expected, quantize.TYPES["int8"]))


def lm_head_of(folder: Path) -> np.ndarray:
    return (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        .lm_head.weight.detach()
        .numpy()
    )


def damaged(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def of_something_else(file: Path) -> None:
    save_file(
        {name: torch.zeros_like(t) for name, t in load_file(file).items()},
        file,
        metadata={"made_of": "other"},
    )


def of_other_shapes(file: Path) -> None:
    rewrite(file, lambda blocks: blocks[:-1].contiguous())


def written_by_others(file: Path) -> None:
    rewrite(file, torch.zeros_like)
    file.chmod(0o666)


def rewrite(file: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """By another program, which copies what the file says of itself."""
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    save_file(
        {name: change(tensor) for name, tensor in load_file(file).items()}, file, metadata=metadata
    )


@pytest.mark.parametrize("harm", [damaged, of_something_else, of_other_shapes, written_by_others])
def test_blocks_that_are_damaged_or_foreign_are_made_anew(tmp_path, harm):
    folder = save_model(tmp_path / "model")
    expected = load_int8(folder)
    (path,) = quantized_cache(tmp_path)
    assert (
        path.stat().st_mode & 0o022 == 0
        and (path / "blocks.safetensors").stat().st_mode & 0o022 == 0
    )
    harm(path / "blocks.safetensors")
    assert torch.equal(load_int8(folder), expected)
    assert quantized_cache(tmp_path) == {path}
    assert torch.equal(load_int8(folder), expected)


def test_a_folder_of_blocks_that_others_can_write_is_not_used(tmp_path, caplog):
    folder = save_model(tmp_path / "model")
    expected = load_int8(folder)
    (path,) = quantized_cache(tmp_path)
    rewrite(path / "blocks.safetensors", torch.zeros_like)
    path.chmod(0o777)
    assert torch.equal(load_int8(folder), expected)
    assert "can be written by others" in caplog.text and "made anew" in caplog.text
