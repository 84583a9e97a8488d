"""The default model, loaded once for all tests of a process: as the engine serves it, and as
transformers reads it, the weights dequantised. A test that changes a model loads one of its own."""

from functools import cache
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from smartspec.engine.models.default_model import default_model_file
from smartspec.engine.models.gguf_config import config_values
from smartspec.engine.models.gguf_file import open_gguf
from smartspec.engine.models.gguf_text import configuration_folder
from smartspec.engine.models.load import load_model
from smartspec.engine.models.loaded_model import LoadedModel


def load_once(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    quantization: str = "auto",
    activations: str = "auto",
) -> LoadedModel:
    """As load_model, one instance for all."""
    return _loaded(name, dtype, device, quantization, activations)


@cache
def _loaded(name: str, dtype: str, device: str, quantization: str, activations: str) -> LoadedModel:
    return load_model(
        name, dtype=dtype, device=device, quantization=quantization, activations=activations
    )


def configuration() -> Path:
    """Folder of its config.json and tokenizer."""
    file = open_gguf(default_model_file())
    return configuration_folder(file, config_values(file)[0])


@cache
def stock_model() -> nn.Module:
    path, config = default_model_file(), AutoConfig.from_pretrained(configuration())
    read = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, config=config, dtype=torch.float32
    )
    # A model read from GGUF cannot be saved; one with its weights can.
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(configuration()), dtype=torch.float32
    )
    model.load_state_dict(read.state_dict())
    return model.eval()


def default_tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(configuration())
