"""A transformers model on the weights of a GGUF file, which stay in their blocks where our kernels read them."""

import numpy as np
import torch
from accelerate import init_empty_weights
from gguf import dequantize
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    Gemma2TensorProcessor,
    LlamaTensorProcessor,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

from smartspec.engine.kernels.cpu.quantized_linear import BLOCK_TYPES
from smartspec.engine.models.gguf_file import GGUFFile, StoredTensor
from smartspec.engine.models.quantized import QuantizedEmbedding, QuantizedLinear, QuantizedWeight, put_on_blocks

# How transformers turns a file's weights into its own: these move whole rows of a weight, or change norms alone.
ROWWISE = (TensorProcessor, LlamaTensorProcessor, Gemma2TensorProcessor)


class BlocksNotKept(Exception):
    """The message says why, so that it reads behind "because"."""


def read_gguf_model(file: GGUFFile, config: PretrainedConfig, attention: str) -> nn.Module:
    """The model of config with the file's weights, on CPU, fp32.

    Raises BlocksNotKept where what lies between the file's weights and transformers' is more than an order of rows, or
    names that are not all known; ValueError where a weight has another shape than the model's.
    """
    architecture = file.scalars.get("general.architecture")
    processor_class = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    if processor_class not in ROWWISE:
        raise BlocksNotKept(f"transformers rearranges those of {architecture!r} models")
    # Weights without memory need no initial values, for which torch would import its compiler's algebra.
    with init_empty_weights(include_buffers=False), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    model.tie_weights()
    processor = processor_class(config=config.to_dict())
    places = get_gguf_hf_weights_map(_Names(model), processor)
    # Weights in blocks take the place of their module, so its bias must be there before.
    for stored in sorted(file.tensors.values(), key=lambda stored: len(stored.shape)):
        if place := places.get(stored.name):
            content = file.read(stored.name) if _stays(model, place, stored) else _plain(file, stored)
            _place(model, place, stored, processor.process(content, stored.name).weights)
    _tie(model)
    missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        raise BlocksNotKept(f"{len(missing)} weights were not found by name, {missing[0]!r} among them")
    return model


class _Names:
    """A model as transformers' mapping of names sees it, without its submodules: for each of them it would build its
    table of names anew, seconds in all, for the sake of architectures that are not read here."""

    def __init__(self, model: nn.Module):
        self.config, self.state_dict = model.config, model.state_dict

    def named_children(self) -> list:
        return []


def _stays(model: nn.Module, place: str, stored: StoredTensor) -> bool:
    """Whether the weight stays in its blocks: it must belong to a plain module, of which we know the forward."""
    module = model.get_submodule(place.rpartition(".")[0])
    return stored.type in BLOCK_TYPES and len(stored.shape) == 2 and type(module) in (nn.Linear, nn.Embedding)


def _plain(file: GGUFFile, stored: StoredTensor) -> np.ndarray:
    raw = file.read(stored.name)
    numbers = {"F32": np.float32, "F16": np.float16}.get(stored.type.name)
    return dequantize(raw if numbers is None else raw.view(numbers), stored.type).astype(np.float32)


def _place(model: nn.Module, place: str, stored: StoredTensor, content: np.ndarray) -> None:
    path, _, name = place.rpartition(".")
    module, tensor = model.get_submodule(path), torch.from_numpy(np.ascontiguousarray(content))
    wanted = tuple(getattr(module, name).shape)
    if wanted != stored.shape:
        raise ValueError(f"tensor {stored.name!r} has shape {stored.shape}, the model {wanted}")
    if not _stays(model, place, stored):
        setattr(module, name, nn.Parameter(tensor, requires_grad=False))
    else:
        put_on_blocks(model, path, QuantizedWeight(tensor, stored.type))


def _tie(model: nn.Module) -> None:
    """A head that has no weight of its own computes with the embedding's, which exists once."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if type(head) is not nn.Linear or not head.weight.is_meta:
        return
    if isinstance(embedding, QuantizedEmbedding):
        model.set_output_embeddings(QuantizedLinear([embedding.quantized], head.bias))
    else:
        head.weight = embedding.weight
