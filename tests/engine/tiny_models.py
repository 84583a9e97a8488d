"""Random tiny models for unit tests: real transformers classes, a vocabulary of 61, no
checkpoint."""

from functools import partial

import numpy as np
import pytest
import torch
from compiled import need_kernels
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from smartspec.engine.attention.ragged import ATTENTION_NAME, register_attention
from smartspec.engine.kernels.cpu.ragged_attention import LIBRARY
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner

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
KERNEL_AND_TORCH = pytest.mark.parametrize("tile_tokens", [64, 0])  # see tiny_runner


def tiny_model(
    model_type: str, seed: int = 0, attention: str = ATTENTION_NAME, **changes: object
) -> PreTrainedModel:
    """changes: of SHAPE."""
    register_attention()
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **SHAPE | changes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.eval().requires_grad_(False)


tiny_llama = partial(tiny_model, "llama")
tiny_mistral = partial(tiny_model, "mistral", sliding_window=7)


def as_loaded(model: torch.nn.Module, **changes: object) -> LoadedModel:
    """changes: of what its configuration says."""
    config, parameter = model.config, next(model.parameters())
    sizes = {
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "windows": (getattr(config, "sliding_window", None),) * config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "max_model_len": config.max_position_embeddings,
        "dtype": parameter.dtype,
        "device": parameter.device,
    }
    rest = {"tokenizer": None, "eos_token_ids": frozenset(), "weight_bytes": 0}
    return LoadedModel("tiny", model, **rest | sizes | changes)


def tiny_runner(
    model: torch.nn.Module | None = None, tile_tokens: int | None = None, **options
) -> ModelRunner:
    """Of a Llama where none is given. tile_tokens: by our kernel with tiles of so many, or by torch
    (0). options: of ModelRunner."""
    loaded = as_loaded(tiny_llama() if model is None else model)
    runner = ModelRunner(loaded, **{"num_slots": 4, "max_len": 128} | options)
    if tile_tokens:
        need_kernels(LIBRARY)
    if tile_tokens is not None:
        runner.max_tile_tokens = tile_tokens
    return runner


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the order in which fp32 sums are taken."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def plain_logits(model: torch.nn.Module, text: np.ndarray, **options) -> torch.Tensor:
    """fp32 [n, vocabulary] of a text, int32 [n], by a plain pass. options: of the model."""
    token_ids = torch.from_numpy(text.astype(np.int64))[None]
    return model(input_ids=token_ids, use_cache=False, **options).logits[0].float()
