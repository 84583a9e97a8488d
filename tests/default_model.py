"""The default model and its tokenizer as transformers reads them, the weights dequantised."""

from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from smartspec.engine.models.default_model import default_model_file
from smartspec.engine.models.gguf_config import config_values
from smartspec.engine.models.gguf_file import open_gguf
from smartspec.engine.models.gguf_text import configuration_folder


def configuration() -> Path:
    """Folder of its config.json and tokenizer."""
    file = open_gguf(default_model_file())
    return configuration_folder(file, config_values(file)[0])


def stock_model() -> nn.Module:
    path = default_model_file()
    read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    # A model read from GGUF cannot be saved; one with its weights can.
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(configuration()), dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    return model.eval()


def default_tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(configuration())
