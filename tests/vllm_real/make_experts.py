"""A tiny model with experts and random weights, whose ranks of data parallelism run in lockstep."""

import json
import shutil
from pathlib import Path

import torch
from transformers import MixtralConfig, MixtralForCausalLM


def make_experts(folder: Path, model: str) -> str:
    """Mixtral with two layers of four experts. The tokenizer is model's."""
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=2048,
        initializer_range=0.1,
    )
    MixtralForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(Path(model) / name, Path(folder) / name)
    return str(folder)
