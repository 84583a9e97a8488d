"""Checkpoint folders of tiny random models, for what reads them from disk."""

from pathlib import Path

import numpy as np
import torch
from tiny_models import plain_logits
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.load import load_model
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner

SIZES = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
    "eos_token_id": [1, 5],
    "pad_token_id": None,
}

# of heads of 8 numbers, for the phi3 type
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0, 2.0, 3.0, 3.0],
    "original_max_position_embeddings": 48,
}


def save_tokenizer(folder: Path) -> None:
    vocabulary = {"<unk>": 0, "<s>": 1, "<end>": 2} | {f"w{i}": i for i in range(3, 32)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>"
    ).save_pretrained(folder)


def save_model(
    folder: Path, model_type: str = "llama", auto: type = AutoModelForCausalLM, **changes: object
) -> Path:
    torch.manual_seed(0)
    auto.from_config(AutoConfig.for_model(model_type, **{**SIZES, **changes})).save_pretrained(
        folder
    )
    save_tokenizer(folder)
    return folder


def load_saved(folder: Path, **options: str) -> LoadedModel:
    """The model in a folder, or in a GGUF file, on the CPU."""
    return load_model(str(folder), device="cpu", **options)


def stock_logits(
    folder: Path, text: np.ndarray, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """fp32 [n, vocabulary] of a text, int32 [n], by transformers' own modules."""
    options = {"attn_implementation": "eager", "dtype": dtype}
    return plain_logits(AutoModelForCausalLM.from_pretrained(folder, **options).eval(), text)


def served_logits(loaded: LoadedModel, text: np.ndarray) -> torch.Tensor:
    """The same by one pass as the engine runs it."""
    runner = ModelRunner(loaded, num_slots=1, max_len=len(text))
    return runner.forward([Segment(0, 0, text, len(text))])
