"""Small GGUF files of llama models, in blocks of any type."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from gguf_architectures import GGUFSpec, Value, write_gguf
from transformers import LlamaConfig

CONFIG = LlamaConfig(
    vocab_size=96,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=128,
    rope_theta=10000.0,
    tie_word_embeddings=True,
)
_LAYER = {
    "attn_norm": (256,),
    "ffn_norm": (256,),
    "attn_q": (256, 256),
    "attn_k": (128, 256),
    "attn_v": (128, 256),
    "attn_output": (256, 256),
    "ffn_gate": (512, 256),
    "ffn_up": (512, 256),
    "ffn_down": (256, 512),
}
_SHAPES = {"token_embd.weight": (96, 256), "output_norm.weight": (256,)} | {
    f"blk.{layer}.{name}.weight": shape for layer in (0, 1) for name, shape in _LAYER.items()
}
_KEYS: dict[str, Value] = {
    "block_count": CONFIG.num_hidden_layers,
    "context_length": CONFIG.max_position_embeddings,
    "embedding_length": CONFIG.hidden_size,
    "feed_forward_length": CONFIG.intermediate_size,
    "attention.head_count": CONFIG.num_attention_heads,
    "attention.head_count_kv": CONFIG.num_key_value_heads,
    "attention.layer_norm_rms_epsilon": CONFIG.rms_norm_eps,
}


def write_llama(path: Path, types: dict[str, str], **tensors: np.ndarray) -> Path:
    """types: block types by the part of a tensor's name after its layer, such as {"attn_v":
    "Q6_K"}, Q4_1 where none is given; tensors: others, in fp32."""
    parts = {name: name.split(".")[-2] for name, shape in _SHAPES.items() if len(shape) == 2}
    kinds = {name: GGMLQuantizationType[types.get(part, "Q4_1")] for name, part in parts.items()}
    spec = GGUFSpec("llama", _SHAPES, _KEYS).with_tensors(**tensors)
    return write_gguf(path, spec, types=kinds)
