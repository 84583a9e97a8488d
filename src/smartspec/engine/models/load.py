"""A decoder-only model, its tokenizer and the few numbers the engine needs, from a name, a folder or a GGUF file."""

import ctypes
import gc
import logging
from dataclasses import replace
from pathlib import Path

import torch
from gguf import GGMLQuantizationType
from torch import nn
from transformers import PreTrainedTokenizerBase

from smartspec.engine.attention.probe import AttentionCall, probe
from smartspec.engine.kernels.cpu import native, quantized_linear
from smartspec.engine.models import half_weights
from smartspec.engine.models.checkpoint import UnsupportedModelError, locate, map_tensor, read_checkpoint
from smartspec.engine.models.decoder_layer import describe_layers, fuse_layers
from smartspec.engine.models.end_of_turn import end_token_ids
from smartspec.engine.models.fused_pass import fused_pass
from smartspec.engine.models.fusion import FusedAttention, fuse
from smartspec.engine.models.half_weights import keep_half_weights
from smartspec.engine.models.linear import make_linear, pack_linears, pad_small_batches, warm_up
from smartspec.engine.models.load_check import (
    Reference,
    find_difference,
    independent_length,
    layer_windows,
    predictions_of_text,
    rounding_harm,
    take_reference,
)
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.quantize import QUANTIZATIONS, TYPES, quantize
from smartspec.engine.models.quantized import lay_out_by_panels, round_inputs, weight_bytes

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Options of an attention call that change nothing for us or that our attention implements; any other must be off.
KNOWN_ATTENTION_OPTIONS = {
    "scaling", "dropout", "sliding_window", "position_ids", "use_cache", "is_causal", "logits_to_keep"
}  # fmt: skip
# What is tried, in turn, until the model computes what the stock one does: layers in one call, modules fused and
# linears packed, only linears packed, the stock modules.
PREPARATIONS = ("layers", "fused", "packed", "stock")
ACTIVATIONS = ("auto", "int8", "fp32")
_BF16 = frozenset([GGMLQuantizationType.BF16])


def load_model(
    name: str, *, dtype: str = "auto", device: str = "auto", quantization: str = "auto", activations: str = "auto"
) -> LoadedModel:
    """Load a model by DEFAULT_MODEL, Hugging Face id, local folder or path of a .gguf file.

    dtype: of weights that are in floats, "auto" (the checkpoint's on CPU, bfloat16 on CUDA) or one of DTYPES. On a CPU
    our kernels compute in fp32 on any of them, but for linears after "bfloat16", see round_inputs; where they do not
    run everything is of the dtype, and "auto" is float32. device: "auto" or a torch device. quantization: "auto" keeps
    weights as the checkpoint has them, in blocks or in floats; "none" unpacks blocks; "int8" and "int4" round floats to
    blocks. Blocks need our kernels: where these do not run, "auto" unpacks too. activations: "int8" rounds the inputs
    of linears on blocks to 8 bits, "fp32" rounds no inputs, "auto" is int8 where the processor multiplies it faster and
    the model's logits hardly change.
    Raises ValueError for a dtype, device or architecture we cannot serve, OSError for a checkpoint that is missing or
    damaged; both name the remedy.
    """
    torch_device = _parse_device(device)
    has_kernels = native.why_not(quantized_linear.LIBRARY, torch_device, torch.float32) is None
    torch_dtype = _parse_dtype(dtype, torch_device, has_kernels)
    has_blocks = _parse_quantization(quantization, torch_device, torch_dtype)
    _parse_activations(activations, torch_device)
    source, files = locate(name)

    def read() -> tuple[nn.Module, PreTrainedTokenizerBase]:
        model, tokenizer = read_checkpoint(name, source, files, torch_dtype, keep_blocks=has_blocks)
        if quantization in TYPES and not files:
            quantize(model, TYPES[quantization], Path(source) if Path(source).is_dir() else None)
        if has_kernels:
            keep_half_weights(model)
        return model.requires_grad_(False).eval().to(torch_device), tokenizer

    model, tokenizer = read()
    facts, reference = _examine(name, model, tokenizer)
    for preparation in PREPARATIONS:
        model = read()[0] if model is None else model  # what is replaced is gone: it must not be in memory twice
        try:
            min_rows = _prepare(model, preparation, Path(source))
            rounds = torch_dtype == torch.bfloat16 and activations != "fp32" and round_inputs(model, _BF16)
            describe_layers(model)
            whole = fused_pass(model) if preparation == "layers" else None
            loaded = replace(facts, model=model, min_rows=min_rows, fused_pass=whole)
            loaded = replace(loaded, activations="bfloat16") if rounds else loaded
            problem = find_difference(loaded, reference)
        except Exception as error:  # modules are transformers': they may raise anything
            problem = f"preparing them fails with {type(error).__name__}: {error}"
        if problem is None:
            if activations != "fp32" and has_kernels:
                loaded = _in_int8(loaded, is_required=activations == "int8")
            give_back_memory()
            return loaded
        logger.warning("%s is not served with %s modules: %s", name, preparation, problem)
        loaded = model = None
    raise UnsupportedModelError(f"{name!r} is not supported: even with stock modules {problem}: use another model")


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
        raise ValueError(f"device {device!r} is not there (torch sees {torch.cuda.device_count()}): use cpu")
    return parsed


def _parse_dtype(dtype: str, device: torch.device, has_kernels: bool) -> torch.dtype | None:
    """None: whatever the checkpoint has."""
    if dtype == "auto":
        return None if has_kernels else torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: use auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _parse_quantization(quantization: str, device: torch.device, dtype: torch.dtype | None) -> bool:
    """Whether weights may be in blocks."""
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"unknown quantization {quantization!r}: use {', '.join(QUANTIZATIONS)}")
    reason = native.why_not(quantized_linear.LIBRARY, device, torch.float32)
    if quantization in TYPES and reason:
        raise ValueError(f"quantization {quantization!r} needs our kernels for processors, but {reason}: use none")
    if quantization in TYPES and dtype in half_weights.TYPES:
        raise ValueError(f"weights are either of dtype {dtype} or in blocks of {quantization!r}: name one of them")
    return quantization != "none" and reason is None


def _parse_activations(activations: str, device: torch.device) -> None:
    if activations not in ACTIVATIONS:
        raise ValueError(f"unknown activations {activations!r}: use {', '.join(ACTIVATIONS)}")
    reason = native.why_not(quantized_linear.LIBRARY, device, torch.float32)
    if activations == "int8" and reason:
        raise ValueError(f"activations 'int8' need our kernels for processors, but {reason}: use auto or fp32")


def _in_int8(loaded: LoadedModel, *, is_required: bool) -> LoadedModel:
    """The model with the inputs of its linears on blocks rounded to 8 bits, where that is faster and hardly changes its
    logits, or is required. Raises ValueError where it is required and there are no such linears."""
    if not is_required and not quantized_linear.is_int8_fast():
        return loaded
    before = predictions_of_text(loaded)
    # Rounding what queries and keys are made of would be a third of all that rounding changes.
    heads = frozenset(module.qkv for module in loaded.model.modules() if isinstance(module, FusedAttention))
    if not round_inputs(loaded.model, quantized_linear.INT8_TYPES, in_two_terms=heads):
        if is_required:
            raise ValueError(
                f"activations 'int8' need weights of 8 bits or less, {loaded.name!r} has none: use quantization int8 "
                "or int4, or activations auto"
            )
        return loaded
    describe_layers(loaded.model)
    rounded = replace(loaded, activations="int8")
    problem = rounding_harm(before, predictions_of_text(rounded))
    if problem is None:
        return rounded
    if is_required:
        logger.warning("%s with activations in 8 bits: %s", loaded.name, problem)
        return rounded
    logger.warning("%s is served with activations in fp32: in 8 bits %s", loaded.name, problem)
    round_inputs(loaded.model, quantized_linear.INT8_TYPES, terms=0)
    describe_layers(loaded.model)
    return loaded


def _examine(name: str, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> tuple[LoadedModel, Reference]:
    """What is to be known of the stock model (the model itself left out), and what it computes.

    Raises UnsupportedModelError where our attention cannot take its attention's place.
    """
    try:
        logits, calls = probe(model)
        _check_attention(name, model, calls)
        max_model_len, reason = _max_model_len(name, model, logits, calls)
        reference = take_reference(model, logits.shape[-1], max_model_len, calls)
    except UnsupportedModelError:
        raise
    except Exception as error:  # modules are transformers': they may raise anything
        problem = f"a pass of the stock model fails with {type(error).__name__}: {error}"
        raise _unsupported(name, model, problem) from error
    facts = LoadedModel(
        name=name,
        model=None,
        tokenizer=tokenizer,
        num_layers=len(calls),
        num_heads=calls[0].query.shape[1],
        num_kv_heads=calls[0].key.shape[1],
        head_dim=calls[0].key.shape[3],
        windows=layer_windows(calls),
        vocab_size=logits.shape[-1],
        max_model_len=max_model_len,
        max_model_len_reason=reason,
        eos_token_ids=end_token_ids(model, tokenizer),
        dtype=model.dtype,
        device=model.device,
        weight_bytes=weight_bytes(model),
    )
    return facts, reference


def _prepare(model: nn.Module, preparation: str, folder: Path) -> int:
    """Replace modules in place as the preparation says; returns the rows its linears like at least."""
    if preparation == "stock":
        _own_parameters(model, None)
        return 1
    mapped = _pack_tied_head(model, folder)
    if preparation != "packed":
        fuse(model)
    pack_linears(model)
    _own_parameters(model, mapped)
    lay_out_by_panels(model)
    if preparation == "layers":
        fuse_layers(model)
    min_rows = pad_small_batches(model)
    warm_up(model)
    return min_rows


def give_back_memory() -> None:
    """What a start needed for a moment: modules in cycles, and glibc keeps what is freed, a fifth of the process."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _pack_tied_head(model: nn.Module, folder: Path) -> nn.Parameter | None:
    """Pack a head that shares the embedding's weight, without keeping that weight in memory twice.

    Packing reads the whole of the mapped file; mapped anew, only the rows that are looked up become resident. Returns
    the embedding where that was possible.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if type(head) is not nn.Linear or head.weight is not embedding.weight:
        return None
    packed = make_linear(head.weight, head.bias)
    parameters = model.named_parameters(remove_duplicate=False)
    names = {name for name, parameter in parameters if parameter is embedding.weight}
    again = map_tensor(folder, names) if not isinstance(packed, nn.Linear) else None
    if again is None or again.dtype != embedding.weight.dtype or not torch.equal(again[-1], embedding.weight[-1]):
        return None
    model.set_output_embeddings(packed)
    embedding.weight.data = again
    return embedding.weight


def _own_parameters(model: nn.Module, mapped: nn.Parameter | None) -> None:
    """Copy what is still mapped from a checkpoint file, so that the file's pages can leave memory. What lies on another
    device has been copied there."""
    for parameter in model.parameters():
        if parameter is not mapped and parameter.device.type == "cpu":
            parameter.data = parameter.data.clone()


def _check_attention(name: str, model: nn.Module, calls: list[AttentionCall]) -> None:
    """Our cache holds keys and values of one shape per layer, and our attention knows causal and sliding windows."""
    num_layers = model.config.get_text_config().num_hidden_layers
    options = {key for call in calls for key, value in call.options.items() if value is not None and value is not False}
    problem = None
    if sorted(call.module.layer_idx for call in calls) != list(range(num_layers)):
        problem = f"its {num_layers} layers call the attention interface of transformers {len(calls)} times"
    elif any(call.key.shape != calls[0].key.shape or call.value.shape != calls[0].key.shape for call in calls):
        problem = "its layers or its keys and values differ in shape"
    elif options - KNOWN_ATTENTION_OPTIONS:
        problem = f"its attention uses {', '.join(sorted(options - KNOWN_ATTENTION_OPTIONS))}"
    elif any("attention_plan" not in call.options for call in calls):
        problem = "its attention does not pass keyword arguments on to the attention interface"
    elif any(not getattr(call.module, "is_causal", True) for call in calls):
        problem = "its attention is not causal"
    elif not all(call.has_known_mask for call in calls):
        problem = "its attention masks are neither causal nor sliding windows"
    if problem:
        raise _unsupported(name, model, problem)


def _unsupported(name: str, model: nn.Module, problem: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{name!r} ({type(model).__name__}) is not supported: {problem}: use another model")


def _max_model_len(name: str, model: nn.Module, logits: torch.Tensor, calls: list[AttentionCall]) -> tuple[int, str]:
    """Positions the model can be served with, and what they are. logits, calls: what a probe of it gave."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if length is None:
        raise _unsupported(name, model, "its config names no max_position_embeddings")
    independent = independent_length(model, int(length), logits, calls)
    if independent == length:
        return independent, LoadedModel.max_model_len_reason
    reason = "the positions beyond which one request would change the rotary factors of all others in its batch"
    logger.warning("%s is served up to %d tokens, %s", name, independent, reason)
    return independent, reason
