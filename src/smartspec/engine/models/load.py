"""A decoder-only model, its tokenizer and the few numbers the engine needs, from a name, a folder
or a GGUF file."""

import ctypes
import gc
import logging
from dataclasses import replace

import torch
from gguf import GGMLQuantizationType
from torch import nn
from transformers import PreTrainedTokenizerBase

from smartspec.engine.kernels.cpu import native, quantized_linear
from smartspec.engine.models import half_weights
from smartspec.engine.models.checkpoint import UnsupportedModelError, locate, read_checkpoint
from smartspec.engine.models.decoder_layer import describe_layers, fuse_layers
from smartspec.engine.models.end_of_turn import end_token_ids
from smartspec.engine.models.examination import examine
from smartspec.engine.models.findings import (
    Findings,
    Notes,
    findings_path,
    keep_findings,
    read_findings,
)
from smartspec.engine.models.fused_pass import fused_pass
from smartspec.engine.models.fusion import FusedAttention, fuse
from smartspec.engine.models.half_weights import keep_half_weights
from smartspec.engine.models.linear import pack_linears
from smartspec.engine.models.load_check import find_difference, predictions_of_text, rounding_harm
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.quantize import QUANTIZATIONS, TYPES, quantize
from smartspec.engine.models.quantized import lay_out_by_panels, round_inputs, weight_bytes
from smartspec.engine.models.sampling_defaults import sampling_defaults

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# What is tried, in turn, until the model computes what the stock one does: layers in one call,
# modules fused and linears packed, only linears packed, the stock modules.
PREPARATIONS = ("layers", "fused", "packed", "stock")
ACTIVATIONS = ("auto", "int8", "fp32")
_BF16 = frozenset([GGMLQuantizationType.BF16])


def load_model(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    quantization: str = "auto",
    activations: str = "auto",
) -> LoadedModel:
    """Load a model by DEFAULT_MODEL, Hugging Face id, local folder or path of a .gguf file.

    dtype: of weights that are in floats, "auto" (the checkpoint's on CPU, bfloat16 on CUDA) or one
    of DTYPES. On a CPU our kernels compute in fp32 on any of them, but for linears after
    "bfloat16", see round_inputs; where they do not run everything is of the dtype, and "auto" is
    float32. device: "auto" or a torch device. quantization: "auto" keeps weights as the checkpoint
    has them, in blocks or in floats; "none" unpacks blocks; "int8" and "int4" round floats to
    blocks. Blocks need our kernels: where these do not run, "auto" unpacks too. activations: "int8"
    rounds the inputs of linears on blocks to 8 bits, "fp32" rounds no inputs, "auto" is int8 where
    the processor multiplies it faster and the model's logits hardly change.
    Raises ValueError for a dtype, device or architecture we cannot serve, OSError for a checkpoint
    that is missing or damaged; both name the remedy.
    """
    torch_device = _parse_device(device)
    no_kernels = native.why_not(quantized_linear.LIBRARY, torch_device, torch.float32)
    has_kernels = no_kernels is None
    torch_dtype = _parse_dtype(dtype, torch_device, has_kernels)
    has_blocks = _parse_quantization(quantization, torch_dtype, no_kernels)
    _check_activations(activations, no_kernels)
    rounds_bf16 = torch_dtype == torch.bfloat16 and activations != "fp32"
    source, files = locate(name)

    def read() -> tuple[nn.Module, PreTrainedTokenizerBase]:
        model, tokenizer = read_checkpoint(name, source, files, torch_dtype, keep_blocks=has_blocks)
        if quantization in TYPES and not files:
            quantize(model, TYPES[quantization])
        if has_kernels:
            keep_half_weights(model)
        return model.requires_grad_(False).eval().to(torch_device), tokenizer

    model, tokenizer = read()
    path = findings_path(source, files, (dtype, str(torch_device), quantization, activations))
    known = read_findings(path)
    if known is not None:
        facts = _facts(name, model, tokenizer, known.shape)
        return _as_found(known, facts, model, rounds_bf16)
    notes = Notes()
    shape, reference = examine(name, model, notes)
    facts = _facts(name, model, tokenizer, shape)
    for preparation in PREPARATIONS:
        # what is replaced is gone: it must not be in memory twice
        model = read()[0] if model is None else model
        try:
            loaded = _prepared(facts, model, preparation, rounds_bf16)
            problem = find_difference(loaded, reference)
        except Exception as error:  # modules are transformers': they may raise anything
            problem = f"preparing them fails with {type(error).__name__}: {error}"
            path = None  # it may have been for want of memory, and go better next time
        if problem is None:
            if activations != "fp32" and has_kernels:
                loaded = _in_int8_if_harmless(
                    loaded, is_required=activations == "int8", notes=notes
                )
            keep_findings(
                path, Findings(shape, preparation, loaded.activations == "int8", notes.lines)
            )
            give_back_memory()
            return loaded
        notes.add(f"{name} is not served with {preparation} modules: {problem}")
        loaded = model = None
    raise UnsupportedModelError(
        f"{name!r} is not supported: even with stock modules {problem}: use another model"
    )


def _parse_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"unknown device {device!r}: use auto, cpu, cuda or cuda:N") from error
    if parsed.type not in ("cpu", "cuda"):
        raise ValueError(f"device {device!r} is not supported: use auto, cpu, cuda or cuda:N")
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {device!r} is not there (torch sees {torch.cuda.device_count()}): use cpu"
        )
    return parsed


def _parse_dtype(dtype: str, device: torch.device, has_kernels: bool) -> torch.dtype | None:
    """The dtype to load in; None: whatever the checkpoint has."""
    if dtype == "auto":
        return None if has_kernels else torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: use auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _parse_quantization(
    quantization: str, dtype: torch.dtype | None, no_kernels: str | None
) -> bool:
    """True if weights may be in blocks. no_kernels: the reason why ours do not run, if so."""
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"unknown quantization {quantization!r}: use {', '.join(QUANTIZATIONS)}")
    if quantization in TYPES and no_kernels:
        raise ValueError(
            f"quantization {quantization!r} needs our kernels for processors, but {no_kernels}: "
            "use none"
        )
    if quantization in TYPES and dtype in half_weights.TYPES:
        raise ValueError(
            f"weights are either of dtype {dtype} or in blocks of {quantization!r}: name one of "
            "them"
        )
    return quantization != "none" and no_kernels is None


def _check_activations(activations: str, no_kernels: str | None) -> None:
    if activations not in ACTIVATIONS:
        raise ValueError(f"unknown activations {activations!r}: use {', '.join(ACTIVATIONS)}")
    if activations == "int8" and no_kernels:
        raise ValueError(
            f"activations 'int8' need our kernels for processors, but {no_kernels}: use auto or "
            "fp32"
        )


def _in_int8_if_harmless(loaded: LoadedModel, *, is_required: bool, notes: Notes) -> LoadedModel:
    """The model with the inputs of its linears on blocks rounded to 8 bits, where that is faster
    and hardly changes its logits, or is required. Raises ValueError where it is required and there
    are no such linears."""
    if not is_required and not quantized_linear.int8_instructions():
        return loaded
    before = predictions_of_text(loaded)
    rounded = _in_int8(loaded)
    if rounded is loaded:
        if is_required:
            raise ValueError(
                f"activations 'int8' need weights of 8 bits or less, {loaded.name!r} has none: use "
                "quantization int8 or int4, or activations auto"
            )
        return loaded
    problem = rounding_harm(before, predictions_of_text(rounded))
    if problem is None:
        return rounded
    if is_required:
        notes.add(f"{loaded.name} with activations in 8 bits: {problem}")
        return rounded
    notes.add(f"{loaded.name} is served with activations in fp32: in 8 bits {problem}")
    round_inputs(loaded.model, quantized_linear.INT8_TYPES, terms=0)
    describe_layers(loaded.model)
    return loaded


def _in_int8(loaded: LoadedModel) -> LoadedModel:
    """The model with the inputs of its linears on blocks rounded to 8 bits; itself where it has
    none."""
    # Rounding what queries and keys are made of would be a third of all that rounding changes.
    heads = frozenset(
        module.qkv for module in loaded.model.modules() if isinstance(module, FusedAttention)
    )
    if not round_inputs(loaded.model, quantized_linear.INT8_TYPES, in_two_terms=heads):
        return loaded
    describe_layers(loaded.model)
    return replace(loaded, activations="int8")


def _facts(
    name: str, model: nn.Module, tokenizer: PreTrainedTokenizerBase, shape: dict
) -> LoadedModel:
    """The facts to be known of a model before its modules are replaced; the model itself is left
    out."""
    return LoadedModel(
        name=name,
        model=None,
        tokenizer=tokenizer,
        eos_token_ids=end_token_ids(model, tokenizer),
        dtype=model.dtype,
        device=model.device,
        weight_bytes=weight_bytes(model),
        sampling_defaults=sampling_defaults(model.generation_config),
        **shape | {"windows": tuple(shape["windows"])},
    )


def _as_found(
    known: Findings, facts: LoadedModel, model: nn.Module, rounds_bf16: bool
) -> LoadedModel:
    """The model as an earlier load of it has found that it may be served."""
    for note in known.notes:
        logger.warning(note)
    loaded = _prepared(facts, model, known.preparation, rounds_bf16)
    give_back_memory()
    return _in_int8(loaded) if known.rounds_to_int8 else loaded


def _prepared(
    facts: LoadedModel, model: nn.Module, preparation: str, rounds_bf16: bool
) -> LoadedModel:
    """The model with its modules replaced. rounds_bf16: inputs of linears on bfloat16 may be
    rounded to that."""
    _prepare(model, preparation)
    rounds = rounds_bf16 and round_inputs(model, _BF16)
    describe_layers(model)
    whole = fused_pass(model) if preparation == "layers" else None
    activations = "bfloat16" if rounds else facts.activations
    return replace(facts, model=model, fused_pass=whole, activations=activations)


def _prepare(model: nn.Module, preparation: str) -> None:
    """Replace modules in place as the preparation says."""
    if preparation in ("layers", "fused"):
        fuse(model)
    if preparation != "stock":
        pack_linears(model)
        lay_out_by_panels(model)
    _own_parameters(model)
    if preparation == "layers":
        fuse_layers(model)


def give_back_memory() -> None:
    """Free what a start needed for a moment: modules in cycles, and what glibc keeps of it, a fifth
    of the process."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _own_parameters(model: nn.Module) -> None:
    """Copy what is still mapped from a checkpoint file, so that the file's pages can leave memory.
    What lies on another device has been copied there."""
    for parameter in model.parameters():
        if parameter.device.type == "cpu":
            parameter.data = parameter.data.clone()
