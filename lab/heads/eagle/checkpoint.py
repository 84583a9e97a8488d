"""Heads of EAGLE and EAGLE-2 on disk: the layout of the original checkpoints, and the `speculators`
format."""

from functools import partial
from pathlib import Path

import torch
from transformers import LlamaConfig

from lab.heads.eagle.head import EagleConfig, EagleHead
from smartspec.engine.drafting.head.checkpoint.files import (
    filled,
    in_floats,
    read_json,
    read_tensors,
)
from smartspec.engine.drafting.head.checkpoint.layer import layer_config
from smartspec.engine.drafting.head.checkpoint.taps import no_head
from smartspec.engine.models.loaded_model import LoadedModel

# What the speculators format calls otherwise.
NAMES = {"fusion_fc.": "fc.", "transformer.": "layers.0."}
# The target's own are used, as in vLLM; the rotary table is computed.
NOT_NEEDED = ("embed_tokens.", "lm_head.", "rotary_emb.")


def read_eagle(folder: Path, target: LoadedModel) -> tuple[EagleHead, None]:
    """A head for this target in fp32, which brings no embedding. Raises ValueError where it is for
    another target or a variant with norms of its own, OSError where the checkpoint is damaged; both
    name the remedy."""
    data = read_json(folder / "config.json")
    if data.get("layernorms"):
        raise ValueError(
            f"{folder} is an EAGLE head with layernorms, which are not supported: use one without"
        )
    layer = layer_config(folder, data)
    _check_target(folder, layer, target)
    weights = _weights(folder)
    config = EagleConfig(layer, taps=(target.num_layers + 1,), fc_bias="fc.bias" in weights)
    return filled(folder, partial(EagleHead, config), weights), None


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights by the names of the original checkpoints, in fp32."""
    weights = {}
    for name, tensor in read_tensors(folder).items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        if not any(part in name for part in NOT_NEEDED):
            weights[name] = in_floats(folder, name, tensor)
    return weights


def _check_target(folder: Path, layer: LlamaConfig, target: LoadedModel) -> None:
    size = target.model.config.get_text_config().hidden_size
    problem = None
    if layer.hidden_size != size:
        problem = f"it reads hidden states of size {layer.hidden_size}, the target's are of {size}"
    elif layer.vocab_size != target.vocab_size:
        problem = (
            f"it is for a vocabulary of {layer.vocab_size} tokens, the target has "
            f"{target.vocab_size}"
        )
    elif layer.num_hidden_layers != 1:
        problem = f"it has {layer.num_hidden_layers} layers, one is supported"
    if problem:
        raise no_head(folder, target, problem)
