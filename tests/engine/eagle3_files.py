"""Heads on disk: EAGLE-3 checkpoints of tiny random ones, in the layouts they are published in."""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from tiny_models import SHAPE, VOCABULARY

from smartspec.engine.drafting.head.eagle3 import Eagle3Head
from smartspec.engine.drafting.head.kinds import load_head

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
OF_HEAD = {
    "speculators_model_type",
    "draft_vocab_size",
    "target_hidden_size",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "logit_scale",
    "eagle_config",
}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * 0.3


def tensors(
    taps: int = 2, prefix: str = "layers.0.", drafts: int = DRAFTS, layer: dict = LAYER
) -> dict:
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
    found = {
        f"{name}.weight": random(*shape, seed=n) for n, (name, shape) in enumerate(shapes.items())
    }
    ids = torch.arange(drafts) + (torch.arange(drafts) >= 20) * (VOCABULARY - drafts)
    t2d = torch.zeros(VOCABULARY, dtype=torch.bool)
    t2d[ids] = True
    return found | {"d2t": ids - torch.arange(drafts), "t2d": t2d}


def without(found: dict, *names: str) -> dict:
    return {name: tensor for name, tensor in found.items() if name not in names}


def write(folder: Path, config: dict, found: dict, name: str = "model.safetensors") -> Path:
    """A head whose weights are in the file of this name, in the format that it says."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file({key: tensor.contiguous() for key, tensor in found.items()}, folder / name)
    else:
        torch.save(found, folder / name)
    return folder


def config_with(changes: dict) -> dict:
    """CONFIG with these, of the head or of its layer."""
    of_head = {key: value for key, value in changes.items() if key in OF_HEAD}
    of_layer = {key: value for key, value in changes.items() if key not in OF_HEAD}
    return CONFIG | of_head | {"transformer_layer_config": LAYER | of_layer}


def read(folder: Path, config: dict, found: dict, num_layers: int = LAYERS) -> Eagle3Head:
    """The head that is written there, for a target of so many layers."""
    return load_head(write(folder / "head", config, found), target_of(num_layers))[0]


def target_of(num_layers: int) -> SimpleNamespace:
    text = SimpleNamespace(hidden_size=SIZE)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    return SimpleNamespace(model=model, num_layers=num_layers, vocab_size=VOCABULARY, name="target")


def original(**more: object) -> dict:
    return (
        LAYER
        | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "draft_vocab_size": DRAFTS,
        }
        | more
    )
