"""EAGLE-3 checkpoints as they are published: what is read of them, what is said, what is refused and why; and what
their heads compute, against transformers' own layers."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_models import SHAPE, VOCABULARY, as_loaded, tiny_llama
from transformers import Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting import head_runner as head_runner_module
from smartspec.engine.drafting import native_head
from smartspec.engine.drafting.head_kinds import head_drafter, is_head, kind_of, load_head
from smartspec.engine.drafting.p_eagle import PEagleHead
from smartspec.engine.models import model_runner
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.models.quantized import QuantizedLinear, QuantizedWeight

SIZE, WIDE, HEAD_DIM, DRAFTS, LAYERS = SHAPE["hidden_size"], 48, 8, 40, 12
LAYER = {
    "hidden_size": SIZE,
    "intermediate_size": WIDE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 128,
}
KEY = "eagle_aux_hidden_state_layer_ids"
CONFIG = {
    "speculators_model_type": "eagle3",
    "draft_vocab_size": DRAFTS,
    "norm_before_residual": False,
    KEY: [1, 2],
    "transformer_layer_config": LAYER,
}
OF_HEAD = (
    *("draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm", "logit_scale"),
    "eagle_config",
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * 0.3


def tensors(taps: int = 2, prefix: str = "layers.0.", drafts: int = DRAFTS, layer: dict = LAYER) -> dict:
    """Weights of a head whose layer has this shape."""
    size, wide, head_dim = layer["hidden_size"], layer["intermediate_size"], layer["head_dim"]
    queries, keys = layer["num_attention_heads"] * head_dim, layer["num_key_value_heads"] * head_dim
    shapes = {
        "fc": (size, taps * SIZE),
        "lm_head": (drafts, size),
        "norm": (size,),
        f"{prefix}input_layernorm": (size,),
        f"{prefix}hidden_norm": (size,),
        f"{prefix}post_attention_layernorm": (size,),
        f"{prefix}self_attn.q_proj": (queries, 2 * size),
        f"{prefix}self_attn.k_proj": (keys, 2 * size),
        f"{prefix}self_attn.v_proj": (keys, 2 * size),
        f"{prefix}self_attn.o_proj": (size, queries),
        f"{prefix}mlp.gate_proj": (wide, size),
        f"{prefix}mlp.up_proj": (wide, size),
        f"{prefix}mlp.down_proj": (size, wide),
    }
    found = {f"{name}.weight": random(*shape, seed=n) for n, (name, shape) in enumerate(shapes.items())}
    ids = torch.arange(drafts) + (torch.arange(drafts) >= 20) * (VOCABULARY - drafts)
    t2d = torch.zeros(VOCABULARY, dtype=torch.bool)
    t2d[ids] = True
    return found | {"d2t": ids - torch.arange(drafts), "t2d": t2d}


def without(found: dict, *names: str) -> dict:
    return {name: tensor for name, tensor in found.items() if name not in names}


def write(folder: Path, config: dict, found: dict) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / "model.safetensors")
    return folder


def target_of(num_layers: int) -> SimpleNamespace:
    text = SimpleNamespace(hidden_size=SIZE)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    return SimpleNamespace(model=model, num_layers=num_layers, vocab_size=VOCABULARY, name="target")


def original(**more: object) -> dict:
    return (
        LAYER | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": DRAFTS} | more
    )


# ---- layers that are read


def test_layers_that_are_not_named_are_guessed_and_said(tmp_path, caplog):
    """By SafeAILab/EAGLE's own rule: what layers 2, L / 2 and L - 3 are given."""
    for config in (without(CONFIG, KEY), CONFIG | {KEY: []}, original(), original(eagle_config={KEY: []})):
        caplog.clear()
        prefix = "layers.0." if "speculators_model_type" in config else "midlayer."
        head, _ = load_head(write(tmp_path / "head", config, tensors(taps=3, prefix=prefix)), target_of(LAYERS))
        assert head.config.taps == (2, LAYERS // 2, LAYERS - 3)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "[2, 6, 9] are taken" in record.getMessage() and f"set {KEY} in config.json" in record.getMessage()


@pytest.mark.parametrize(
    "named",
    [{KEY: [5, 1]}, {"eagle_config": {KEY: [5, 1]}}, {"transformer_layer_config": LAYER | {KEY: [1, 5]}}],
)
def test_named_layers_are_taken_in_the_targets_order(tmp_path, caplog, named):
    head, _ = load_head(write(tmp_path / "head", without(CONFIG, KEY) | named, tensors()), target_of(LAYERS))
    assert head.config.taps == (1, 5) and not caplog.records


@pytest.mark.parametrize(
    ("config", "taps", "layers", "message"),
    [
        (without(CONFIG, KEY), 4, LAYERS, rf"fc.weight reads 4 layers .* does not say which: set {KEY}"),
        (without(CONFIG, KEY), 3, 3, rf"a target of 3 layers has not the usual ones .*: set {KEY}"),
        (CONFIG, 3, LAYERS, rf"fc.weight reads 3 layers of size 32, its config.json names 2 \(\[1, 2\]\): set {KEY}"),
        (CONFIG | {KEY: [0, 2]}, 2, LAYERS, r"it taps layers \[0, 2\], the target has 12"),
        (CONFIG | {KEY: [True, 2]}, 2, LAYERS, r"it taps layers \[True, 2\], the target has 12"),
        (original(eagle_config={"use_aux_hidden_state": False}), 2, LAYERS, "use_aux_hidden_state is false"),
    ],
)
def test_layers_that_cannot_be_told_are_refused(tmp_path, config, taps, layers, message):
    with pytest.raises(ValueError, match=message):
        load_head(write(tmp_path / "head", config, tensors(taps=taps)), target_of(layers))


# ---- what is used of a checkpoint


def test_an_original_head_of_the_whole_vocabulary_is_told_by_its_architecture(tmp_path):
    config = without(original(eagle_config={KEY: [1, 2]}), "draft_vocab_size")
    found = without(tensors(prefix="midlayer.", drafts=VOCABULARY), "d2t", "t2d")
    folder = write(tmp_path / "head", config, found)
    assert is_head(str(folder)) and kind_of(folder) == "eagle3"
    assert load_head(folder, target_of(LAYERS))[0].target_ids.tolist() == list(range(VOCABULARY))


def test_a_map_that_is_missing_is_made_of_the_other(tmp_path):
    expected = tensors()["d2t"] + torch.arange(DRAFTS)
    head, _ = load_head(write(tmp_path / "head", CONFIG, without(tensors(), "d2t")), target_of(LAYERS))
    assert torch.equal(head.target_ids, expected)
    with pytest.raises(OSError, match="lacks weights, 'd2t' among them, which names the 40 of 61 tokens"):
        load_head(write(tmp_path / "head", CONFIG, without(tensors(), "d2t", "t2d")), target_of(LAYERS))


def test_maps_that_contradict_each_other_are_said(tmp_path, caplog):
    found = tensors()
    load_head(
        write(tmp_path / "head", CONFIG, found | {"t2d": torch.zeros(VOCABULARY, dtype=torch.bool)}), target_of(4)
    )
    assert not caplog.records, "of maps that were never set nothing is to be said"
    load_head(write(tmp_path / "head", CONFIG, found | {"t2d": ~found["t2d"]}), target_of(LAYERS))
    assert "d2t and t2d name different tokens" in caplog.text
    load_head(write(tmp_path / "head", CONFIG, found | {"d2t": -torch.arange(DRAFTS)}), target_of(LAYERS))
    assert "d2t names a token twice" in caplog.text


def test_weights_in_several_files_are_read(tmp_path):
    folder, found = write(tmp_path / "head", CONFIG, {}), tensors()
    (folder / "model.safetensors").unlink()
    names = sorted(found)
    parts = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for part, of_part in zip(parts, (names[:5], names[5:]), strict=True):
        save_file({name: found[name].contiguous() for name in of_part}, folder / part)
    index = {name: parts[number >= 5] for number, name in enumerate(names)}
    for has_index in (True, False):
        if has_index:
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        head, _ = load_head(folder, target_of(LAYERS))
        assert torch.equal(head.fc.weight, found["fc.weight"]) and torch.equal(head.norm.weight, found["norm.weight"])
        (folder / parts[1]).rename(folder / "away")
        with pytest.raises(OSError, match=rf"lacks '{parts[1]}', 1 of 2 files with its weights: download it again"):
            load_head(folder, target_of(LAYERS))
        (folder / "away").rename(folder / parts[1])
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    outside = {"norm.weight": str(Path("..", "..", "other"))}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": outside}))
    with pytest.raises(OSError, match="names no files beside it"):
        load_head(folder, target_of(LAYERS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_dtypes_are_read(tmp_path, dtype):
    found = {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors().items()}
    found["d2t"] = found["d2t"].to(torch.int32)
    head, _ = load_head(write(tmp_path / "head", CONFIG, found), target_of(LAYERS))
    assert torch.equal(head.fc.weight, found["fc.weight"].float()) and head.d2t.dtype == torch.int64


def test_a_variant_of_p_eagle_is_told_by_its_weights(tmp_path):
    found = tensors() | {"mask_hidden": random(2 * SIZE)}
    head, _ = load_head(
        write(tmp_path / "head", original(ptd_token_id=7, eagle_config={KEY: [1, 2]}), found), target_of(4)
    )
    assert isinstance(head, PEagleHead) and head.mask_token_id == 7
    assert torch.equal(head.mask_hidden.flatten(), found["mask_hidden"])


# ---- what is refused


@pytest.mark.parametrize(
    ("config", "found", "message"),
    [
        ({}, {"layers.1.mlp.up_proj.weight": random(WIDE, SIZE)}, "holds several layers .*, one is supported"),
        ({}, {"midlayer.mlp.up_proj.weight": random(WIDE, SIZE)}, r"'layers.0.mlp.up_proj.weight' twice"),
        ({}, {"fc.weight_scale": random(1)}, "weights of a kind that is not supported, 'fc.weight_scale'"),
        ({}, {"fc.weight": random(SIZE, 64).to(torch.int8)}, "fc.weight is torch.int8; heads with quantized weights"),
        ({}, {"fc.weight": torch.full((SIZE, 64), torch.nan)}, "fc.weight holds numbers that are not finite"),
        ({}, {"d2t": random(DRAFTS)}, "d2t is torch.float32, it must hold integers"),
        ({}, {"d2t": torch.full((DRAFTS,), 2**62)}, "index map d2t names token 4611686018427387904"),
        ({}, {"d2t": torch.full((DRAFTS,), -DRAFTS)}, "index map d2t names token -40"),
        (
            {},
            {"embed_tokens.weight": random(VOCABULARY, 2048)},
            r"embed_tokens.weight is \(61, 2048\), its config says",
        ),
        ({}, {"embed_tokens.weight": random(1, SIZE)}, r"embed_tokens.weight is \(1, 32\), its config says \(61, 32\)"),
        ({"draft_vocab_size": 10**12}, {}, "drafts from 1000000000000 tokens, the target has 61"),
        ({"draft_vocab_size": -1}, {}, "drafts from -1 tokens, the target has 61"),
        ({"target_hidden_size": 0}, {}, "reads features of size 0"),
        ({"norm_before_fc": "false"}, {}, "norm_before_fc is 'false', it must be true or false"),
        ({"fc_norm": True}, {}, r"lacks 2 weights, 'fc_norm.0.weight'"),
        ({"logit_scale": 0.5}, {}, "logit_scale is 0.5, only 1 is supported"),
        ({"eagle_config": {"use_last_layernorm": False}}, {}, "use_last_layernorm is False, only True is supported"),
        ({"hidden_act": "gelu"}, {}, "hidden_act is 'gelu', only 'silu' is supported"),
        ({"model_type": "gemma"}, {}, "its layer is of type 'gemma'"),
        ({"sliding_window": 64}, {}, r"attends in a window \(64 tokens\), which is not supported"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 64}, {}, "attends in a window"),
        (
            {"hidden_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1, "target_hidden_size": 32},
            {},
            "it has no embedding",
        ),
        ({"num_hidden_layers": 2}, {}, "it has 2 layers, one is supported"),
        ({"num_attention_heads": 0}, {}, "is of no layer"),
        ({"num_attention_heads": -4}, {}, r"is of no layer \(num_attention_heads is -4, it must be a number from 1"),
        ({"num_key_value_heads": 3}, {}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"head_dim": 7}, {}, "is of no layer .*even"),
        ({"head_dim": 10}, {}, r"q_proj.weight is \(32, 64\), its config says \(40, 64\)"),
        ({"intermediate_size": 2**40}, {}, "intermediate_size is 1099511627776, it must be a number from 1 to"),
        ({"rms_norm_eps": -1.0}, {}, "rms_norm_eps is -1.0"),
        ({"partial_rotary_factor": 0.5}, {}, "partial_rotary_factor is 0.5, only 1 is supported"),
        (
            {
                "rope_parameters": {
                    "rope_type": "linear",
                    "factor": 2.0,
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 0.5,
                }
            },
            {},
            "partial_rotary_factor is 0.5, only 1 is supported",
        ),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, {}, "is of no layer .*spiral"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}}, {}, "give no finite angles"),
    ],
)
def test_a_head_that_lies_is_refused_by_the_true_reason(tmp_path, config, found, message):
    of_head = {key: value for key, value in config.items() if key in OF_HEAD}
    of_layer = {key: value for key, value in config.items() if key not in OF_HEAD}
    changed = CONFIG | of_head | {"transformer_layer_config": LAYER | of_layer}
    with pytest.raises((ValueError, OSError), match=message):
        load_head(write(tmp_path / "head", changed, tensors() | found), target_of(LAYERS))


@pytest.mark.parametrize("window", [{"sliding_window": 64, "use_sliding_window": False}, {"sliding_window": None}])
def test_a_window_that_nothing_uses_is_none(tmp_path, window):
    load_head(write(tmp_path / "head", CONFIG | {"transformer_layer_config": LAYER | window}, tensors()), target_of(4))


# ---- what a head computes


@pytest.fixture(params=["the kernels of this machine", "torch"])
def kernels(request, monkeypatch):
    if request.param == "torch":
        for module in (model_runner, native_head, head_runner_module):
            monkeypatch.setattr(module, "max_tokens_per_tile", lambda *model: 0)


def reference(found: dict, config: dict, features: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
    """Probabilities behind the last position, by transformers' Qwen3 layer, as speculators' own code makes a head of
    it; without its norms of query and key that is Llama's."""
    rms = torch.nn.functional.rms_norm
    size = found["norm.weight"].shape[0]
    shape = {**LAYER, **config["transformer_layer_config"], "hidden_size": size, "attention_bias": True}
    qwen = Qwen3Config(**shape, attn_implementation="eager")
    layer = Qwen3DecoderLayer(qwen, 0).float()
    for name in ("q_proj", "k_proj", "v_proj"):
        outputs = getattr(layer.self_attn, name).out_features
        setattr(layer.self_attn, name, torch.nn.Linear(2 * size, outputs))
    for name in ("gate_proj", "up_proj", "down_proj"):
        old = getattr(layer.mlp, name)
        setattr(layer.mlp, name, torch.nn.Linear(old.in_features, old.out_features))
    for name, parameter in layer.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.zeros_(parameter)
    of_layer = {name.removeprefix("layers.0."): t for name, t in found.items() if name.startswith("layers.0.")}
    hidden_norm = of_layer.pop("hidden_norm.weight")
    layer.load_state_dict(of_layer, strict=False)
    if "self_attn.q_norm.weight" not in of_layer:
        layer.self_attn.q_norm = layer.self_attn.k_norm = torch.nn.Identity()
    if "input_norm.weight" in found:
        features = rms(features, features.shape[-1:], found["input_norm.weight"], 1e-5)
    if "fc_norm.0.weight" in found:
        chunks = features.split(SIZE, dim=-1)
        features = torch.cat(
            [rms(c, (SIZE,), found[f"fc_norm.{i}.weight"], 1e-5) for i, c in enumerate(chunks)], dim=-1
        )
    hidden = torch.nn.functional.linear(features, found["fc.weight"], found.get("fc.bias"))
    normed = rms(hidden, (size,), hidden_norm, 1e-5)
    joined = torch.cat([layer.input_layernorm(embeds), normed], dim=-1)[None]
    num = len(hidden)
    turn = LlamaRotaryEmbedding(qwen)(joined, torch.arange(num)[None])
    causal = torch.full((num, num), float("-inf")).triu(1)[None, None]
    attended = layer.self_attn(hidden_states=joined, position_embeddings=turn, attention_mask=causal)[0][0]
    hidden = (normed if config.get("norm_before_residual") else hidden) + attended
    hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    last = rms(hidden[-1], (size,), found["norm.weight"], 1e-5)
    return torch.nn.functional.linear(last, found["lm_head.weight"], found.get("lm_head.bias")).softmax(-1)


def biases(found: dict, *names: str) -> dict:
    return {f"{name}.bias": random(len(found[f"{name}.weight"]), seed=5) for name in names}


ATTENTION = [f"layers.0.self_attn.{name}_proj" for name in "qkvo"]
MLP = [f"layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")]
QK_NORMS = {f"layers.0.self_attn.{name}_norm.weight": random(HEAD_DIM, seed=9) + 1 for name in "qk"}
NARROW = tensors(layer=LAYER | {"hidden_size": 16})
SHAPES = {
    "as it is": ({}, {}),
    "fc.bias": ({}, biases(tensors(), "fc")),
    "attention_bias": ({"attention_bias": True}, biases(tensors(), *ATTENTION)),
    "biases of query, key and value, as in Qwen2": ({}, biases(tensors(), *ATTENTION[:3])),
    "a bias of the query alone": ({}, biases(tensors(), ATTENTION[0])),
    "biases of the MLP": ({}, biases(tensors(), *MLP)),
    "lm_head.bias": ({}, biases(tensors(), "lm_head")),
    "Qwen3's norms": ({"model_type": "qwen3"}, QK_NORMS),
    "norm_before_residual": ({"norm_before_residual": True}, {}),
    "norm_before_fc, said by the weights": ({}, {"input_norm.weight": random(2 * SIZE) + 1}),
    "norm_before_fc": ({"eagle_config": {"norm_before_fc": True}}, {"input_norm.weight": random(2 * SIZE) + 1}),
    "fc_norm": ({"fc_norm": True}, {f"fc_norm.{i}.weight": random(SIZE, seed=i) + 1 for i in range(2)}),
    "an embedding of its own": ({}, {"embed_tokens.weight": random(VOCABULARY, SIZE)}),
    "narrower than the target": (
        {"hidden_size": 16, "target_hidden_size": SIZE},
        {**NARROW, "embed_tokens.weight": random(VOCABULARY, 16)},
    ),
    "rope as in Llama 3": (
        {"rope_theta": 5e4, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }},
        {},
    ),
}  # fmt: skip


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_head_computes_what_transformers_layer_does(tmp_path, shape):
    changes, more = SHAPES[shape]
    of_head = {key: value for key, value in changes.items() if key in OF_HEAD}
    of_layer = {key: value for key, value in changes.items() if key not in OF_HEAD}
    config = CONFIG | of_head | {"transformer_layer_config": LAYER | of_layer}
    found = tensors() | more
    target = ModelRunner(as_loaded(tiny_llama()), num_slots=2, max_len=64, taps=(1, 2))
    head, embedding = load_head(write(tmp_path / "head", config, found), target.loaded)
    runner = head_drafter(head, target, name="head", num_slots=2, embedding=embedding, is_rounded=False).runner
    tokens, features = np.arange(9, dtype=np.int32) * 5 % VOCABULARY, random(9, 2 * SIZE)
    runner.features[1, :9] = features
    proposals = runner.propose([Segment(1, 0, tokens, 1)], None, DRAFTS)
    table = target.loaded.model.get_input_embeddings().weight if embedding is None else embedding
    expected = reference(found, config, features, table[torch.from_numpy(tokens).long()]).detach().numpy()
    ids = (found["d2t"] + torch.arange(DRAFTS)).numpy()
    order = np.argsort(-expected)
    assert proposals.token_ids[0, 0] == ids[order[0]]
    place = {token: number for number, token in enumerate(ids)}
    np.testing.assert_allclose(proposals.chances[0], expected[[place[t] for t in proposals.token_ids[0]]], rtol=2e-3)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("drafts", [DRAFTS, VOCABULARY])
@pytest.mark.parametrize("form", ["floats", "served", "int8"])
def test_a_head_without_lm_head_reads_the_targets_rows(tmp_path, drafts, form):
    """As speculators fills it: the verifier's lm_head by t2d. In whatever form the target's is served."""
    model = tiny_llama()
    found = tensors(drafts=drafts)
    config = CONFIG | {"draft_vocab_size": drafts}
    rows = model.lm_head.weight[found["d2t"] + torch.arange(drafts)].clone()
    if form == "served":
        model.lm_head = head_runner_module.make_linear(model.lm_head.weight)
    if form == "int8":
        rows = rounded(model, rows)
    target = ModelRunner(as_loaded(model), num_slots=2, max_len=64, taps=(1, 2))
    head, _ = load_head(write(tmp_path / "head", config, without(found, "lm_head.weight")), target.loaded)
    assert head.lm_head is None
    head_drafter(head, target, name="head", num_slots=2, is_rounded=False)
    torch.testing.assert_close(head.lm_head.weight, rows, rtol=0, atol=0)


def rounded(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = torch.from_numpy(gguf.quantize(model.lm_head.weight.numpy(), kind))
    model.lm_head = QuantizedLinear([QuantizedWeight(blocks, kind)])
    return torch.from_numpy(gguf.dequantize(gguf.quantize(rows.numpy(), kind), kind))


def test_a_head_without_lm_head_of_another_size_is_refused(tmp_path):
    config = CONFIG | {"target_hidden_size": SIZE, "transformer_layer_config": LAYER | {"hidden_size": 16}}
    found = without(NARROW, "lm_head.weight") | {"embed_tokens.weight": random(VOCABULARY, 16)}
    with pytest.raises(ValueError, match=r"no output embedding \(lm_head\) and its hidden states are of size 16"):
        load_head(write(tmp_path / "head", config, found), target_of(LAYERS))
