"""Drafters with random weights for vLLM's methods: nearly all they draft is wrong, what is made of
it may not be."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY = 512  # of the EAGLE-3 head: the target's first tokens


def make_eagle(folder: Path, model: str) -> str:
    """An EAGLE head: one layer of the target's shape."""
    config = _config(model) | {"num_hidden_layers": 1, "intermediate_size": 64}
    hidden = config["hidden_size"]
    weights = _layer(config, hidden, "layers.0.") | {"fc.weight": _random(hidden, 2 * hidden)}
    return _save(folder, config, weights)


def make_eagle3(folder: Path, model: str, num_draft_tokens: int, kind: str = "eagle3") -> str:
    """An EAGLE-3 head in the format of the library speculators. kind: peagle, which drafts a block
    in one pass, too."""
    layer = _config(model) | {"num_hidden_layers": 1, "intermediate_size": 64}
    hidden = layer["hidden_size"]
    weights = _layer(layer, 2 * hidden, "layers.0.") | {
        "layers.0.input_layernorm.weight": torch.ones(hidden),
        "layers.0.hidden_norm.weight": torch.ones(hidden),
        "fc.weight": _random(hidden, 3 * hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": _random(VOCABULARY, hidden),
        "d2t": torch.zeros(VOCABULARY, dtype=torch.int64),
    }
    if kind == "peagle":
        weights["mask_hidden"] = _random(1, 3 * hidden)
    return _save(folder, _speculators(kind, layer, model, num_draft_tokens), weights)


def make_dflash(folder: Path, model: str, num_draft_tokens: int) -> str:
    """A DFlash drafter of one layer, in the same format: it drafts a block in one pass."""
    layer = _config(model) | {
        "num_hidden_layers": 1, "intermediate_size": 64, "model_type": "qwen3",
        "attention_bias": False, "layer_types": ["full_attention"],
    }  # fmt: skip
    hidden, size = layer["hidden_size"], layer["head_dim"]
    weights = _layer(layer, hidden, "layers.0.") | {
        "layers.0.input_layernorm.weight": torch.ones(hidden),
        "layers.0.self_attn.q_norm.weight": torch.ones(size),
        "layers.0.self_attn.k_norm.weight": torch.ones(size),
        "fc.weight": _random(hidden, 3 * hidden),
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": _random(VOCABULARY, hidden),
        "d2t": torch.zeros(VOCABULARY, dtype=torch.int64),
    }
    more = {"aux_hidden_state_layer_ids": [2, 15, 27], "block_size": num_draft_tokens + 1}
    return _save(folder, _speculators("dflash", layer, model, num_draft_tokens) | more, weights)


def _speculators(kind: str, layer: dict, model: str, num_draft_tokens: int) -> dict:
    name = {
        "eagle3": "Eagle3Speculator",
        "peagle": "PEagleSpeculator",
        "dflash": "DFlashSpeculator",
    }[kind]
    return {
        "architectures": [name],
        "speculators_model_type": kind,
        "speculators_version": "0.3.0",
        "draft_vocab_size": VOCABULARY,
        "target_hidden_size": layer["hidden_size"],
        "mask_token_id": 0,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": num_draft_tokens}
            ],
            "verifier": {"name_or_path": model, "architectures": ["LlamaForCausalLM"]},
        },
    }


def make_medusa(folder: Path, model: str, num_heads: int) -> str:
    """Medusa heads over one projection, onto the whole vocabulary: vLLM 0.32 does not load a
    smaller one."""
    hidden, vocabulary = _config(model)["hidden_size"], _config(model)["vocab_size"]
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden,
        "vocab_size": vocabulary,
        "num_heads": num_heads,
        "num_hidden_layers": 1,
        "original_lm_head": True,
    }
    weights = {
        f"blocks.{head}.layers.0.weight": _random(hidden, hidden) for head in range(num_heads)
    }
    return _save(folder, config, weights | {"lm_heads.0.weight": _random(vocabulary, hidden)})


def make_mimo(folder: Path, model: str) -> str:
    """A tiny target with a layer of multi-token prediction, MiMo: Qwen2 and that layer. The
    tokenizer is model's."""
    config = {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "vocab_size": _config(model)["vocab_size"],
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    hidden, weights = config["hidden_size"], {}
    for prefix in ("model.layers.0.", "model.layers.1.", "model.mtp_layers.0."):
        weights |= _layer(config, hidden, prefix) | {
            f"{prefix}input_layernorm.weight": torch.ones(hidden)
        }
        weights |= {
            f"{prefix}self_attn.{name}_proj.bias": torch.zeros(n)
            for name, n in (("q", 128), ("k", 64), ("v", 64))
        }
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"model.mtp_layers.0.{name}.weight"] = torch.ones(hidden)
    weights["model.mtp_layers.0.input_proj.weight"] = _random(hidden, 2 * hidden)
    weights["model.norm.weight"] = torch.ones(hidden)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = _random(config["vocab_size"], hidden, scale=1.0)
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(Path(model) / name, folder / name)
    return _save(folder, config, weights)


def _config(model: str) -> dict:
    return json.loads((Path(model) / "config.json").read_text())


def _random(rows: int, columns: int, scale: float = 0.05) -> torch.Tensor:
    return (
        torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows + columns)) * scale
    )


def _layer(config: dict, inputs: int, prefix: str) -> dict[str, torch.Tensor]:
    """A decoder layer as Llama's, but for the norm before it. inputs: what the attention is fed."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries, keys = (
        config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value")
    )
    return {
        f"{prefix}self_attn.q_proj.weight": _random(queries, inputs),
        f"{prefix}self_attn.k_proj.weight": _random(keys, inputs),
        f"{prefix}self_attn.v_proj.weight": _random(keys, inputs),
        f"{prefix}self_attn.o_proj.weight": _random(hidden, queries),
        f"{prefix}post_attention_layernorm.weight": torch.ones(hidden),
        f"{prefix}mlp.gate_proj.weight": _random(inner, hidden),
        f"{prefix}mlp.up_proj.weight": _random(inner, hidden),
        f"{prefix}mlp.down_proj.weight": _random(hidden, inner),
    }


def _save(folder: Path, config: dict, weights: dict[str, torch.Tensor]) -> str:
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    return str(folder)
