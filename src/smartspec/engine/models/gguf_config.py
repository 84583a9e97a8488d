"""The configuration of a GGUF file's model, as transformers' configuration class of its
architecture takes it.

For every architecture one function, which takes the keys that its model applies. What it does not
take is refused (gguf_keys.py), so a key that is new to us never changes a model unseen.
"""

from collections.abc import Callable
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from smartspec.engine.models.gguf_file import GGUFFile
from smartspec.engine.models.gguf_keys import Keys
from smartspec.engine.models.gguf_rope import rope_base, rope_parameters
from smartspec.engine.models.unsupported import UnsupportedModelError

Values = dict[str, Any]
RMS, LAYER_NORM = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
ATTENTION_BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias")


def config_values(file: GGUFFile) -> tuple[Values, set[str]]:
    """The values to make the configuration of, with its model_type, and the tensors that stand in
    it.

    Raises UnsupportedModelError naming the architecture, key or tensor that cannot be applied.
    """
    keys = Keys(file)
    if keys.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path.name} is not served: its general.architecture is {keys.architecture!r}, "
            f"GGUF files are read of {', '.join(sorted(ARCHITECTURES))}: use one of these, or the "
            "model's Hugging Face checkpoint"
        )
    model_type, read = ARCHITECTURES[keys.architecture]
    values = _common(keys) | {"model_type": model_type}
    values |= read(keys, values)
    keys.refuse_rest()
    return values, keys.tensors


def make_config(values: Values) -> PretrainedConfig:
    """The configuration of these values. Raises UnsupportedModelError where transformers refuses
    them, ValueError where it makes something else of one."""
    try:
        config = CONFIG_MAPPING[values["model_type"]](**values)
    except Exception as error:  # of many kinds
        reason = " ".join(str(error).split())
        raise UnsupportedModelError(
            f"transformers has no such {values['model_type']} model ({reason})"
        ) from error
    for name, value in values.items():
        found = getattr(config, name, None)
        same = (
            value.items() <= found.items()
            if isinstance(value, dict) and isinstance(found, dict)
            else found == value
        )
        if not same:
            raise ValueError(f"transformers makes {found!r} of {name} = {value!r}")
    return config


def _common(keys: Keys) -> Values:
    """The values that all architectures have. Token ids are set, as those of a class would be of
    another vocabulary."""
    scalars, num_heads = keys.file.scalars, keys.size("attention.head_count")
    embedding = keys.file.tensors.get("token_embd.weight")
    return {
        "vocab_size": keys.size("vocab_size", embedding.shape[0] if embedding else None),
        "max_position_embeddings": keys.size("context_length"),
        "num_hidden_layers": keys.size("block_count"),
        "hidden_size": keys.size("embedding_length"),
        "num_attention_heads": num_heads,
        "tie_word_embeddings": "output.weight" not in keys.file.tensors,
        "bos_token_id": scalars.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": scalars.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": None,
    }


def _decoder(
    keys: Keys,
    values: Values,
    *,
    free_heads: bool = True,
    of_phi3: bool = False,
) -> Values:
    """Keys and values in groups, rotary positions. free_heads: heads need not share the hidden
    size. of_phi3: see rope_parameters."""
    head_dim = _head_dim(keys, values, free_heads)
    found = {
        "num_key_value_heads": keys.size("attention.head_count_kv", values["num_attention_heads"]),
        "intermediate_size": keys.size("feed_forward_length"),
        "rope_parameters": rope_parameters(
            keys, head_dim, values["max_position_embeddings"], of_phi3
        ),
    }
    return found | {"head_dim": head_dim} if free_heads else found


def _head_dim(keys: Keys, values: Values, is_free: bool) -> int:
    shared, rest = divmod(values["hidden_size"], values["num_attention_heads"])
    if rest and not is_free:
        keys.refuse(
            "attention.head_count",
            values["num_attention_heads"],
            f"the hidden size is {values['hidden_size']}",
        )
    head_dim = keys.size("attention.key_length", shared)
    if not is_free and head_dim != shared:
        keys.refuse("attention.key_length", head_dim, f"the model's heads have {shared} numbers")
    value_length = keys.size("attention.value_length", shared)
    if value_length != head_dim:
        keys.refuse("attention.value_length", value_length, f"keys have {head_dim} numbers")
    return head_dim


def _llama(keys: Keys, values: Values) -> Values:
    biases = {
        "attention_bias": keys.has(*ATTENTION_BIASES),
        "mlp_bias": keys.has("ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"),
    }
    return _decoder(keys, values) | {"rms_norm_eps": keys.real(RMS)} | biases


def _qwen2(keys: Keys, values: Values) -> Values:
    return _decoder(keys, values, free_heads=False) | {"rms_norm_eps": keys.real(RMS)}


def _qwen2moe(keys: Keys, values: Values) -> Values:
    found = _qwen2(keys, values) | _experts(keys)
    return found | {
        "shared_expert_intermediate_size": keys.size(
            "expert_shared_feed_forward_length", found["intermediate_size"]
        ),
        "norm_topk_prob": False,
        "qkv_bias": keys.has("attn_q.bias"),
        "tie_word_embeddings": False,  # these files have a head
    }


def _qwen3(keys: Keys, values: Values) -> Values:
    return _decoder(keys, values) | {"rms_norm_eps": keys.real(RMS)}


def _qwen3moe(keys: Keys, values: Values) -> Values:
    return _qwen3(keys, values) | _experts(keys) | {"norm_topk_prob": True}


def _experts(keys: Keys) -> Values:
    used = keys.size("expert_used_count")
    whole = keys.file.scalars.get(f"{keys.architecture}.feed_forward_length")
    return {
        "num_experts": keys.size("expert_count"),
        "num_experts_per_tok": used,
        "moe_intermediate_size": keys.size(
            "expert_feed_forward_length", whole // used if isinstance(whole, int) and used else None
        ),
    }


def _phi3(keys: Keys, values: Values) -> Values:
    found = _decoder(keys, values, free_heads=False, of_phi3=True)
    original = found["rope_parameters"].get(
        "original_max_position_embeddings", values["max_position_embeddings"]
    )
    return found | {
        "rms_norm_eps": keys.real(RMS),
        "original_max_position_embeddings": original,
        "sliding_window": keys.count("attention.sliding_window", 0) or None,
    }


def _starcoder2(keys: Keys, values: Values) -> Values:
    biases = (*ATTENTION_BIASES, "ffn_up.bias", "ffn_down.bias")
    return _decoder(keys, values, free_heads=False) | {
        "norm_epsilon": keys.real(LAYER_NORM),
        "use_bias": keys.has(*biases),
    }


def _gpt2(keys: Keys, values: Values) -> Values:
    _head_dim(keys, values, is_free=False)
    num_heads = keys.size("attention.head_count_kv", values["num_attention_heads"])
    if num_heads != values["num_attention_heads"]:
        keys.refuse(
            "attention.head_count_kv", num_heads, f"there are {values['num_attention_heads']} heads"
        )
    return {
        "n_inner": keys.size("feed_forward_length"),
        "layer_norm_epsilon": keys.real(LAYER_NORM),
    }


def _gemma3(keys: Keys, values: Values) -> Values:
    """Every sixth layer sees the whole text, the others a window, at positions of a base of their
    own."""
    found = _decoder(keys, values)
    num_layers, window = values["num_hidden_layers"], keys.count("attention.sliding_window", 0)
    local_base = rope_base(keys, "rope.freq_base_swa")
    period = keys.size("attention.sliding_window_pattern", 6)
    is_local = [bool(window and (layer + 1) % period) for layer in range(num_layers)]
    if window and not any(is_local):
        keys.refuse(
            "attention.sliding_window_pattern", period, f"no layer has the window of {window}"
        )
    whole, scaled_width = found["rope_parameters"], found["head_dim"]
    if num_layers == 62:  # the 27B model
        scaled_width = values["hidden_size"] // values["num_attention_heads"]
    if whole["rope_type"] not in ("default", "linear"):
        keys.refuse(
            "rope.scaling.type",
            whole["rope_type"],
            "these models' positions are scaled linearly or not",
        )
    return found | {
        "rms_norm_eps": keys.real(RMS),
        "query_pre_attn_scalar": scaled_width,
        "final_logit_softcapping": keys.real("final_logit_softcapping", 0.0) or None,
        "sliding_window": window or values["max_position_embeddings"],
        "layer_types": ["sliding_attention" if local else "full_attention" for local in is_local],
        "rope_parameters": {
            "full_attention": whole,
            "sliding_attention": {"rope_type": "default", "rope_theta": local_base},
        },
    }


# transformers' model type of every architecture that is read, and what reads its keys.
ARCHITECTURES: dict[str, tuple[str, Callable[[Keys, Values], Values]]] = {
    "gemma3": ("gemma3_text", _gemma3),
    "gpt2": ("gpt2", _gpt2),
    "llama": ("llama", _llama),
    "phi3": ("phi3", _phi3),
    "qwen2": ("qwen2", _qwen2),
    "qwen2moe": ("qwen2_moe", _qwen2moe),
    "qwen3": ("qwen3", _qwen3),
    "qwen3moe": ("qwen3_moe", _qwen3moe),
    "starcoder2": ("starcoder2", _starcoder2),
}
