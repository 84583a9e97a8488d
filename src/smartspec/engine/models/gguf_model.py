"""A transformers model on the weights of a GGUF file, which stay in their blocks where our kernels
read them."""

from collections.abc import Collection

import numpy as np
import torch
from accelerate import init_empty_weights
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
from smartspec.engine.models.quantized import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedWeight,
    can_be_on_blocks,
    put_on_blocks,
)
from smartspec.engine.models.unsupported import UnsupportedModelError

# How transformers turns a file's weights into its own: these move whole rows of a weight, or change
# norms alone.
ROWWISE = (TensorProcessor, LlamaTensorProcessor, Gemma2TensorProcessor)


def why_unpacked(file: GGUFFile) -> str | None:
    """The reason why the file's weights cannot stay in their blocks, None where they can: what lies
    between them and transformers' is no more than an order of rows."""
    architecture = file.scalars.get("general.architecture")
    if TENSOR_PROCESSORS.get(architecture, TensorProcessor) in ROWWISE:
        return None
    return f"transformers rearranges those of {architecture!r} models"


def read_gguf_model(
    file: GGUFFile,
    config: PretrainedConfig,
    attention: str,
    *,
    known: Collection[str] = (),
    keep_blocks: bool = True,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """The model of config with the file's weights, on CPU. Every tensor of the file is used.

    known: tensors that stand in the configuration already. keep_blocks: weights stay in their
    blocks where they belong to a plain module, see why_unpacked; the others are unpacked to dtype.
    Raises UnsupportedModelError naming a tensor that has no place in the model or a weight that the
    file lacks, ValueError where a weight has another shape than the model's.
    """
    architecture = file.scalars.get("general.architecture")
    # Weights without memory need no initial values, for which torch would import its compiler's
    # algebra.
    with init_empty_weights(include_buffers=False), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    model.tie_weights()
    processor_class = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    processor = processor_class(config=config.to_dict())
    places = get_gguf_hf_weights_map(_Names(model), processor)
    _check_tensors(file, places, known)
    _zero_biases(model, file, places, dtype)
    # what the processor puts together of several tensors
    placed: dict[str, dict[str, torch.Tensor]] = {"tensors": {}}
    # Weights in blocks take the place of their module, so its bias must be there before.
    for stored in sorted(file.tensors.values(), key=lambda stored: len(stored.shape)):
        if stored.name in known:
            continue
        place = places.get(stored.name)
        if keep_blocks and place and _is_plain(model, place, stored):
            rows = processor.process(file.read(stored.name), stored.name).weights
            _check_shape(model.get_parameter(place).shape, stored.shape, stored.name)
            put_on_blocks(
                model, place.rpartition(".")[0], QuantizedWeight(_tensor(rows), stored.type)
            )
            continue
        numbers = file.read_plain(stored.name)
        done = processor.process(
            numbers, stored.name, tensor_key_mapping=places, parsed_parameters=placed
        )
        if done.name is not None:
            _place(model, places[done.name], _tensor(done.weights).to(dtype), stored.name)
    for place, tensor in placed["tensors"].items():
        _place(model, place, tensor.to(dtype), place)
    if config.tie_word_embeddings:
        _tie(model)
    missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        problem = f"it lacks {len(missing)} weights, {missing[0]!r} among them"
        raise UnsupportedModelError(
            f"{file.path.name} is not served: {problem}: download or convert it again"
        )
    return model


def _check_tensors(file: GGUFFile, places: dict[str, str], known: Collection[str]) -> None:
    """Experts' tensors stand in places without their ending."""
    for name in file.tensors:
        if name not in places and name.removesuffix(".weight") not in places and name not in known:
            raise UnsupportedModelError(
                f"{file.path.name} is not served: its tensor {name!r} has no place in "
                "transformers' model: use another file of this model, or its Hugging Face "
                "checkpoint"
            )


def _zero_biases(
    model: nn.Module, file: GGUFFile, places: dict[str, str], dtype: torch.dtype
) -> None:
    """A file has biases of some linears and layers only; transformers' configurations know all or
    none."""
    names = {place: name for name, place in places.items()}
    for path, module in model.named_modules():
        bias = getattr(module, "bias", None)
        if (
            type(module) is nn.Linear
            and bias is not None
            and names.get(f"{path}.bias") not in file.tensors
        ):
            module.bias = nn.Parameter(torch.zeros(bias.shape, dtype=dtype), requires_grad=False)


class _Names:
    """A model as transformers' mapping of names sees it, without its submodules: for each of them
    it would build its table of names anew, seconds in all, for the sake of architectures that are
    not read here."""

    def __init__(self, model: nn.Module):
        self.config, self.state_dict = model.config, model.state_dict

    def named_children(self) -> list:
        return []


def _is_plain(model: nn.Module, place: str, stored: StoredTensor) -> bool:
    """True if the weight can stay in its blocks: it must belong to a module of which we know the
    forward."""
    module = model.get_submodule(place.rpartition(".")[0])
    return stored.type in BLOCK_TYPES and len(stored.shape) == 2 and can_be_on_blocks(module)


def _check_shape(wanted: torch.Size, shape: tuple[int, ...], name: str) -> None:
    if wanted != shape:
        raise ValueError(f"tensor {name!r} has shape {tuple(shape)}, the model {tuple(wanted)}")


def _place(model: nn.Module, place: str, tensor: torch.Tensor, name: str) -> None:
    path, _, attribute = place.rpartition(".")
    module = model.get_submodule(path)
    _check_shape(getattr(module, attribute).shape, tensor.shape, name)
    if attribute in module._buffers:
        setattr(module, attribute, tensor)
    else:
        setattr(module, attribute, nn.Parameter(tensor, requires_grad=False))


def _tensor(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers))


def _tie(model: nn.Module) -> None:
    """A head that has no weight of its own computes with the embedding's, which exists once."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if type(head) is not nn.Linear or not head.weight.is_meta:
        return
    if isinstance(embedding, QuantizedEmbedding):
        model.set_output_embeddings(QuantizedLinear([embedding.quantized], head.bias))
    else:
        head.weight = embedding.weight
