"""Checkpoint folders of tiny random models, for what reads them from disk."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

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
