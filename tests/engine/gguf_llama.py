"""Small GGUF files of llama models, in blocks of any type."""

from pathlib import Path

import gguf
import numpy as np
from blocks import random_blocks
from gguf_architectures import close
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
_OUTER = {"token_embd": (96, 256), "output": (96, 256), "output_norm": (1, 256)}
_LAYER = {
    "attn_norm": (1, 256),
    "ffn_norm": (1, 256),
    "attn_q": (256, 256),
    "attn_k": (128, 256),
    "attn_v": (128, 256),
    "attn_output": (256, 256),
    "ffn_gate": (512, 256),
    "ffn_up": (512, 256),
    "ffn_down": (256, 512),
}


def write_llama(
    path: Path,
    types: dict[str, str],
    default: str = "Q4_1",
    tied: bool = True,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """types: block types by the part of a tensor's name after its layer, such as {"attn_v":
    "Q6_K"}; tensors: others, in fp32."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(CONFIG.num_hidden_layers)
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(CONFIG.num_attention_heads)
    writer.add_head_count_kv(CONFIG.num_key_value_heads)
    writer.add_vocab_size(CONFIG.vocab_size)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_token_list([f"w{i}" for i in range(CONFIG.vocab_size)])
    shapes = {name: shape for name, shape in _OUTER.items() if name != "output" or not tied}
    for layer in range(CONFIG.num_hidden_layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in _LAYER.items()}
    for seed, (name, (outputs, inputs)) in enumerate(shapes.items()):
        if outputs == 1:
            norm = np.random.default_rng(seed).uniform(0.5, 1.5, inputs).astype(np.float32)
            writer.add_tensor(f"{name}.weight", norm)
        else:
            kind = gguf.GGMLQuantizationType[types.get(name.split(".")[-1], default)]
            writer.add_tensor(
                f"{name}.weight", random_blocks(outputs, inputs, kind, seed).numpy(), raw_dtype=kind
            )
    for name, numbers in (tensors or {}).items():
        writer.add_tensor(name, numbers.astype(np.float32))
    return close(writer, path)
