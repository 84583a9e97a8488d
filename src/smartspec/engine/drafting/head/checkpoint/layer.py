"""The decoder layer that a head's config.json describes, and what of such descriptions our layer
does not compute."""

from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# Layers of these types have Llama's shape; what Qwen's and Mistral's add are biases, norms and
# windows.
LAYER_TYPES = ("llama", "qwen2", "qwen3", "mistral")
MAX_SIZE = 1 << 22  # of any dimension: a vocabulary of four million tokens
SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
)
FIELDS = (
    *SIZES,
    *(
        "hidden_act",
        "rms_norm_eps",
        "attention_bias",
        "mlp_bias",
        "tie_word_embeddings",
        "max_position_embeddings",
    ),
    *(
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "partial_rotary_factor",
        "original_max_position_embeddings",
    ),
)
# What a config may say of a layer, and the values that our layer computes.
COMPUTED = {
    "hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (1,),
    "logit_scale": (1,),
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "use_mtp_layernorm": (False,),
}


def said(data: dict, key: str) -> object:
    """The value of a config.json under this key: of the head, of its eagle_config or of its layer,
    the first of them that says anything; None where none does."""
    for part in (data, data.get("eagle_config"), layer_data(data), rotary_data(data)):
        if isinstance(part, dict) and part.get(key) is not None:
            return part[key]
    return None


def layer_data(data: dict) -> object:
    """The part of a config.json that describes the layer: the whole one in original checkpoints."""
    for key in ("transformer_layer_config", "model"):
        if key in data:
            return data[key]
    return data


def rotary_data(data: dict) -> object:
    layer = layer_data(data)
    layer = layer if isinstance(layer, dict) else {}
    return layer.get("rope_parameters") or layer.get("rope_scaling")


def layer_config(folder: Path, data: dict, **defaults: int) -> LlamaConfig:
    """The shape of a head's decoder layer, of what its config.json says. Raises ValueError where no
    layer has it, or ours does not compute it."""
    try:
        layer = defaults | layer_data(data)
        made = LlamaConfig(**{name: layer[name] for name in FIELDS if name in layer})
        _check_sizes(made)
        _check_rotary(made)
    except (StrictDataclassError, TypeError, ValueError, ArithmeticError, KeyError) as error:
        reason = error.__cause__ or error
        raise ValueError(
            f"{folder}/config.json is of no layer ({reason}): download or train the head again"
        ) from error
    _check_computed(folder, data, layer)
    return made


def _check_sizes(layer: LlamaConfig) -> None:
    for name in SIZES:
        size = getattr(layer, name)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_SIZE:
            raise ValueError(f"{name} is {size!r}, it must be a number from 1 to {MAX_SIZE}")
    if layer.num_attention_heads % layer.num_key_value_heads:
        raise ValueError(
            f"num_attention_heads {layer.num_attention_heads} is no multiple of "
            f"num_key_value_heads {layer.num_key_value_heads}"
        )
    if layer.head_dim % 2:
        raise ValueError(f"head_dim is {layer.head_dim}, it must be even")
    if not 0 < layer.rms_norm_eps < 1:
        raise ValueError(f"rms_norm_eps is {layer.rms_norm_eps}, it must lie between 0 and 1")


def _check_rotary(layer: LlamaConfig) -> None:
    rotary = LlamaRotaryEmbedding(layer)
    if not torch.isfinite(rotary.inv_freq).all() or not 0 < rotary.attention_scaling < float("inf"):
        raise ValueError(f"rope_parameters {layer.rope_parameters} give no finite angles")


def _check_computed(folder: Path, data: dict, layer: dict) -> None:
    reason = None
    kind = layer.get("model_type")
    if (
        layer is not data
        and "transformer_layer_config" in data
        and kind not in (None, *LAYER_TYPES)
    ):
        reason = f"its layer is of type {kind!r}, only {', '.join(LAYER_TYPES)} are supported"
    for key, values in COMPUTED.items():
        value = said(data, key)
        if value is not None and value not in values:
            reason = f"{key} is {value!r}, only {values[0]!r} is supported"
    if _has_window(layer):
        reason = (
            f"its layer attends in a window ({layer.get('sliding_window')!r} tokens), which is not "
            "supported"
        )
    if reason:
        raise ValueError(f"{folder} is a head of another kind: {reason}; use another head")


def _has_window(layer: dict) -> bool:
    """Qwen's configs name a window that nothing uses where use_sliding_window is false."""
    types = layer.get("layer_types")
    if isinstance(types, list):
        return types[:1] not in ([], ["full_attention"])
    return bool(layer.get("sliding_window")) and layer.get("use_sliding_window", True) is not False
