"""Random tiny models for unit tests: real transformers classes, a vocabulary of 61, no
checkpoint."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from smartspec.engine.attention.ragged import ATTENTION_NAME, register_attention
from smartspec.engine.models.loaded_model import LoadedModel

VOCABULARY = 61
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,
}


def tiny_llama(seed: int = 0, attention: str = ATTENTION_NAME) -> LlamaForCausalLM:
    register_attention()
    torch.manual_seed(seed)
    return (
        LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation=attention))
        .eval()
        .requires_grad_(False)
    )


def tiny_mistral(
    seed: int = 0, attention: str = ATTENTION_NAME, sliding_window: int = 7
) -> MistralForCausalLM:
    register_attention()
    torch.manual_seed(seed)
    config = MistralConfig(**SHAPE, sliding_window=sliding_window, attn_implementation=attention)
    return MistralForCausalLM(config).eval().requires_grad_(False)


def as_loaded(model: torch.nn.Module, name: str = "tiny") -> LoadedModel:
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=None,
        num_layers=SHAPE["num_hidden_layers"],
        num_heads=SHAPE["num_attention_heads"],
        num_kv_heads=SHAPE["num_key_value_heads"],
        head_dim=SHAPE["hidden_size"] // SHAPE["num_attention_heads"],
        windows=(getattr(model.config, "sliding_window", None),) * SHAPE["num_hidden_layers"],
        vocab_size=VOCABULARY,
        max_model_len=SHAPE["max_position_embeddings"],
        eos_token_ids=frozenset(),
        dtype=torch.float32,
        device=torch.device("cpu"),
        weight_bytes=0,
    )
