"""EAGLE-3 checkpoints of tiny random heads, in the layouts they are published in."""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from tiny_models import SHAPE, VOCABULARY

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
    *(
        "draft_vocab_size",
        "target_hidden_size",
        "norm_before_residual",
        "norm_before_fc",
        "fc_norm",
        "logit_scale",
    ),
    "eagle_config",
)


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


def write(folder: Path, config: dict, found: dict) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.contiguous() for name, tensor in found.items()}, folder / "model.safetensors"
    )
    return folder


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
