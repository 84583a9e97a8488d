"""What a GGUF file says of its model is applied, or the file is refused by the name of the key or
tensor.

Against llama.cpp itself: test_gguf_llama_cpp.py, in `make test-files`.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from compiled import need_kernels
from gguf_architectures import (
    CONTEXT,
    SPECS,
    VOCABULARY,
    GGUFSpec,
    Value,
    opened,
    read_stock_model,
    write_gguf,
)
from gguf_llama import CONFIG, write_llama
from saved_models import load_saved, save_tokenizer, served_logits
from tiny_models import plain_logits
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from smartspec.engine.kernels.cpu.quantized_linear import LIBRARY
from smartspec.engine.models import checkpoint, gguf_text
from smartspec.engine.models.gguf_config import ARCHITECTURES, config_values, make_config
from smartspec.engine.models.gguf_file import open_gguf
from smartspec.engine.models.gguf_text import configuration_folder
from smartspec.engine.models.unsupported import UnsupportedModelError

HEAD = 24
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 777.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 777.0, "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 777.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 777.0,
    "short_factor": [1.0 + 0.1 * i for i in range(HEAD // 2)],
    "long_factor": [1.0 + 0.5 * i for i in range(HEAD // 2)],
    "attention_factor": 1.2,
    "original_max_position_embeddings": 64,
}


def rotary(parameters: dict) -> LlamaRotaryEmbedding:
    """transformers' own module."""
    return LlamaRotaryEmbedding(
        LlamaConfig(head_dim=HEAD, max_position_embeddings=CONTEXT, rope_parameters=parameters)
    )


def frequency_factors(parameters: dict) -> np.ndarray:
    """What llama.cpp's converter writes as rope_freqs.weight."""
    return (
        rotary({"rope_type": "default", "rope_theta": 777.0}).inv_freq / rotary(parameters).inv_freq
    ).numpy()


def spec_of(parameters: dict) -> GGUFSpec:
    """A llama file that says these rope parameters as llama.cpp's converter says them."""
    spec, kind = SPECS["llama"](), parameters["rope_type"]
    if kind == "llama3":
        return spec.with_tensors(rope_freqs=frequency_factors(parameters))
    keys: dict[str, Value] = {"rope.scaling.type": kind}
    if kind == "longrope":
        keys["rope.scaling.attn_factor"] = parameters["attention_factor"]
        short, long = (np.array(parameters[f"{length}_factor"]) for length in ("short", "long"))
        spec = spec.with_tensors(rope_factors_short=short, rope_factors_long=long)
    else:
        keys["rope.scaling.factor"] = parameters["factor"]
    if "original_max_position_embeddings" in parameters:
        keys["rope.scaling.original_context_length"] = parameters[
            "original_max_position_embeddings"
        ]
    return spec.with_keys(keys)


@pytest.mark.parametrize("length", [60, 200], ids=["short", "long"])
@pytest.mark.parametrize(
    "parameters", [LLAMA3, LINEAR, YARN, LONGROPE], ids=lambda parameters: parameters["rope_type"]
)
def test_positions_are_those_of_transformers_own_module(parameters, length, tmp_path):
    file = opened(tmp_path, spec_of(parameters))
    ours = LlamaRotaryEmbedding(make_config(config_values(file)[0]))
    hidden, positions = torch.zeros(1, 1, 1), torch.arange(length)[None]
    for found, expected in zip(
        ours(hidden, positions), rotary(parameters)(hidden, positions), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)


def test_a_served_model_computes_by_the_factors_of_its_file(tmp_path, monkeypatch):
    """Through the fused pass and its table of positions; expected is transformers' llama3 on the
    same weights."""
    need_kernels(LIBRARY)
    parameters = LLAMA3 | {"rope_theta": 10000.0, "original_max_position_embeddings": 16}
    config = LlamaConfig(**CONFIG.to_dict() | {"rope_parameters": parameters})
    expected = LlamaForCausalLM(config).eval()
    plain = LlamaRotaryEmbedding(CONFIG).inv_freq
    factors = (plain / expected.model.rotary_emb.inv_freq).numpy()
    path = write_llama(tmp_path / "model.gguf", {}, rope_freqs=factors)
    weights = load_gguf_checkpoint(
        path, return_tensors=True, model_to_load=expected, torch_dtype=torch.float32
    )
    expected.load_state_dict(weights["tensors"], strict=False)
    expected.tie_weights()

    def with_tokenizer(file, values):
        make_config(values).save_pretrained(tmp_path)
        save_tokenizer(tmp_path)
        return tmp_path

    monkeypatch.setattr(checkpoint, "configuration_folder", with_tokenizer)
    model = load_saved(path, activations="fp32")
    tokens = (np.arange(100, dtype=np.int32) * 7) % CONFIG.vocab_size
    wanted, found = plain_logits(expected, tokens), served_logits(model, tokens)
    torch.testing.assert_close(found / wanted.std(), wanted / wanted.std(), rtol=0, atol=1e-3)
    assert (found - wanted).std() < 1e-3 * wanted.std()


UNAPPLIED: dict[str, Value] = {
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 5.0,
    "logit_scale": 0.5,
    "residual_scale": 0.5,
    "embedding_scale": 2.0,
    "attention.scale": 0.1,
    "attention.sliding_window": 9,
    "attention.clamp_kqv": 0.1,
    "attention.max_alibi_bias": 8.0,
    "attention.causal": False,
    "attention.value_length": 16,
    "attention.head_count_kv": [2, 1],
    "expert_count": 4,
    "rope.dimension_count": 8,
    "rope.scaling.type": "su",
    "rope.scaling.yarn_ext_factor": 0.5,
    "a.key.of_tomorrow": 1,
    "a_list_of_tomorrow": [1, 2],
}


@pytest.mark.parametrize("key", UNAPPLIED)
def test_what_cannot_be_applied_is_refused_by_its_name(key, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", SPECS["llama"]().with_keys({key: UNAPPLIED[key]}))
    with pytest.raises(
        UnsupportedModelError,
        match=rf"model\.gguf is not served: its key llama\.{key} = .*use another",
    ):
        config_values(open_gguf(path))
    with pytest.raises(UnsupportedModelError, match=key):
        load_saved(path)


@pytest.mark.parametrize("value", ["many", 1.5, True, -1])
def test_a_key_of_another_kind(value, tmp_path):
    file = opened(tmp_path, SPECS["llama"]())
    file.scalars["llama.attention.head_count"] = value
    with pytest.raises(
        UnsupportedModelError, match=r"llama\.attention\.head_count = .* cannot be applied"
    ):
        config_values(file)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"attention.layer_norm_rms_epsilon": None},
            r"no key llama\.attention\.layer_norm_rms_epsilon",
        ),
        ({"general.type": "adapter"}, r"its key general\.type is 'adapter', known is 'model'"),
    ],
)
def test_a_key_that_is_missing_and_a_file_of_no_model_are_named(keys, message, tmp_path):
    with pytest.raises(UnsupportedModelError, match=message):
        config_values(opened(tmp_path, SPECS["llama"]().with_keys(keys)))


def test_keys_that_change_nothing(tmp_path):
    harmless: dict[str, Value] = {
        "rope.scaling.finetuned": True,
        "attn_logit_softcapping": 0.0,
        "logit_scale": 1.0,
        "expert_count": 0,
        "pooling_type": 3,
        "general.name": "A model",
        "general.license": "apache-2.0",
        "general.file_type": 7,
        "general.quantization_version": 2,
        "general.sampling.top_k": 20,
        "attention.head_count_kv": [2, 2],
    }
    spec = SPECS["llama"]()
    plain, _ = config_values(opened(tmp_path, spec))
    assert config_values(opened(tmp_path, spec.with_keys(harmless)))[0] == plain


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_q.scale",
        "blk.1.attn_qkv.weight",
        "rope_factors_long.weight",
        "blk.2.attn_q.weight",
    ],
)
def test_a_tensor_without_a_place_is_refused_by_its_name(name, tmp_path):
    file = opened(tmp_path, SPECS["llama"]().plus({name: (12,)}))
    with pytest.raises(UnsupportedModelError, match=f"'{name}'"):
        read_stock_model(file)


def test_a_head_that_is_missing_where_llama_cpp_wants_one(tmp_path):
    spec = SPECS["qwen2moe"]()
    del spec.shapes["output.weight"]
    file = opened(tmp_path, spec)
    with pytest.raises(UnsupportedModelError, match=r"lacks 1 weights, 'lm_head\.weight'"):
        read_stock_model(file)


@pytest.mark.parametrize("architecture", sorted(SPECS))
def test_every_architecture_reads_with_every_key_applied(architecture, tmp_path):
    """make_config checks that transformers took each value as it was."""
    model = read_stock_model(opened(tmp_path, SPECS[architecture]()))
    with torch.inference_mode():
        logits = model(torch.arange(40)[None] % len(VOCABULARY)).logits
    assert logits.isfinite().all() and logits.std() > 0.1


def test_architectures_that_transformers_reads_and_we_do_not_are_refused_by_name(tmp_path):
    assert set(SPECS) == set(ARCHITECTURES)
    for architecture in {name.replace("_", "-") for name in GGUF_CONFIG_MAPPING} - {
        "general",
        "tokenizer",
    }:
        if architecture.replace("-", "") in {name.replace("-", "") for name in SPECS}:
            continue
        spec = SPECS["llama"]()
        path = write_gguf(tmp_path / "model.gguf", GGUFSpec(architecture, spec.shapes, spec.keys))
        with pytest.raises(
            UnsupportedModelError, match=f"architecture is '{architecture}'.*gemma3, gpt2, llama"
        ):
            load_saved(path)


def test_token_ids_are_the_files_and_not_those_of_a_class(tmp_path):
    file = opened(tmp_path, SPECS["llama"]())
    config = make_config(config_values(file)[0])
    assert (config.bos_token_id, config.eos_token_id) == (0, 0) != (LlamaConfig().bos_token_id, 0)


def test_a_configuration_made_by_other_code_or_of_other_factors_is_not_taken(tmp_path, monkeypatch):
    """The header of a file says nothing of the numbers in its tensors."""
    monkeypatch.setenv("SMARTSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        gguf_text, "_write", lambda path, values, folder: (folder / "config.json").write_text("{}")
    )
    folders = []
    for number in (1.0, 2.0):
        spec = SPECS["llama"]().with_tensors(rope_freqs=np.full(HEAD // 2, number))
        file = opened(tmp_path, spec)
        folders.append(configuration_folder(file, config_values(file)[0]))
        assert configuration_folder(file, config_values(file)[0]) == folders[-1]
    assert len(open_gguf(tmp_path / "model.gguf").header) == len(file.header)
    code = gguf_text._code()
    assert all(
        (Path(gguf_text.__file__).parent / name).read_bytes() in code
        for name in ("gguf_keys.py", "gguf_rope.py")
    )
    monkeypatch.setattr(gguf_text, "_code", lambda: code + b"\n")
    folders.append(configuration_folder(file, config_values(file)[0]))
    assert len(set(folders)) == 3
