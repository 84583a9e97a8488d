"""The examination of a stock model by its passes: what it is, and whether our attention can replace
its own."""

import torch
from torch import nn

from smartspec.engine.attention.probe import AttentionCall, probe
from smartspec.engine.models.findings import Notes
from smartspec.engine.models.load_check import (
    Reference,
    independent_length,
    layer_windows,
    take_reference,
)
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.unsupported import UnsupportedModelError

# Options of an attention call that change nothing for us or that our attention implements; any
# other must be off.
KNOWN_ATTENTION_OPTIONS = {
    "scaling",
    "dropout",
    "sliding_window",
    "position_ids",
    "use_cache",
    "is_causal",
    "logits_to_keep",
}


def examine(name: str, model: nn.Module, notes: Notes) -> tuple[dict, Reference]:
    """Return what a probe of the stock model shows, as fields of LoadedModel, and what it computes.

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
    if reason != LoadedModel.max_model_len_reason:
        notes.add(f"{name} is served up to {max_model_len} tokens, {reason}")
    shape = {
        "num_layers": len(calls),
        "num_heads": calls[0].query.shape[1],
        "num_kv_heads": calls[0].key.shape[1],
        "head_dim": calls[0].key.shape[3],
        "windows": layer_windows(calls),
        "vocab_size": logits.shape[-1],
        "max_model_len": max_model_len,
        "max_model_len_reason": reason,
    }
    return shape, reference


def _check_attention(name: str, model: nn.Module, calls: list[AttentionCall]) -> None:
    """Our cache holds keys and values of one shape per layer, and our attention knows causal and
    sliding windows."""
    num_layers = model.config.get_text_config().num_hidden_layers
    options = {
        key
        for call in calls
        for key, value in call.options.items()
        if value is not None and value is not False
    }
    problem = None
    if sorted(call.module.layer_idx for call in calls) != list(range(num_layers)):
        problem = (
            f"its {num_layers} layers call the attention interface of transformers {len(calls)} "
            "times"
        )
    elif any(
        call.key.shape != calls[0].key.shape or call.value.shape != calls[0].key.shape
        for call in calls
    ):
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
    return UnsupportedModelError(
        f"{name!r} ({type(model).__name__}) is not supported: {problem}: use another model"
    )


def _max_model_len(
    name: str, model: nn.Module, logits: torch.Tensor, calls: list[AttentionCall]
) -> tuple[int, str]:
    """Positions the model can be served with, and what they are. logits, calls: what a probe of it
    gave."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if length is None:
        raise _unsupported(name, model, "its config names no max_position_embeddings")
    independent = independent_length(model, int(length), logits, calls)
    if independent == length:
        return independent, LoadedModel.max_model_len_reason
    return (
        independent,
        "the positions beyond which one request would change the rotary factors of all others in "
        "its batch",
    )
