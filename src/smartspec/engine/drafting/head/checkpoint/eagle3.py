"""EAGLE-3 heads on disk: the `speculators` format, as vLLM loads it, and the layout of the original
EAGLE-3 checkpoints."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from smartspec.engine.drafting.head.checkpoint.files import (
    REMEDY,
    filled,
    in_floats,
    read_json,
    read_tensors,
)
from smartspec.engine.drafting.head.checkpoint.layer import MAX_SIZE, layer_config, said
from smartspec.engine.drafting.head.checkpoint.taps import no_head, read_taps
from smartspec.engine.drafting.head.checkpoint.vocabulary import check_ids, complete_map
from smartspec.engine.drafting.head.eagle3 import Eagle3Head, HeadConfig
from smartspec.engine.models.loaded_model import LoadedModel

VARIANTS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
# weights of a variant
SHOWN_BY = {"norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight"}
# of training alone, or computed
NOT_NEEDED = ("verifier_lm_head.", "verifier_norm.", "rotary_emb.")
MAPS = ("d2t", "t2d")
# From the folder, its config.json, the config and the weights: what makes the head, without
# weights.
MakeHead = Callable[[Path, dict, HeadConfig, dict[str, torch.Tensor]], Callable[[], Eagle3Head]]

logger = logging.getLogger(__name__)


def plain(
    folder: Path, data: dict, config: HeadConfig, weights: dict[str, torch.Tensor]
) -> Callable[[], Eagle3Head]:
    return partial(Eagle3Head, config)


def read_head(
    folder: Path, target: LoadedModel, make: MakeHead = plain
) -> tuple[Eagle3Head, torch.Tensor | None]:
    """A head for this target in fp32, and its own embedding [V, hidden_size] where it brings one.
    make: for heads that add something to EAGLE-3's.

    What config.json should say and does not is guessed, which is logged as a warning. Raises
    ValueError where the head is for another target or of a shape that is not supported, OSError
    where the checkpoint is damaged; both name the remedy.
    """
    data = read_json(folder / "config.json")
    layer = layer_config(folder, data, vocab_size=target.vocab_size)
    weights = _weights(folder)
    config = HeadConfig(
        layer=layer,
        draft_vocab_size=_size(folder, data, "draft_vocab_size", layer.vocab_size, target),
        taps=(),
        target_hidden_size=_size(folder, data, "target_hidden_size", layer.hidden_size, target),
        has_lm_head="lm_head.weight" in weights,
        qk_norm="layers.0.self_attn.q_norm.weight" in weights,
        **_variants(folder, data, weights),
    )
    _check_target(folder, config, target)
    taps = read_taps(folder, data, weights.get("fc.weight"), config.target_hidden_size, target)
    config = replace(config, taps=taps)
    complete_map(folder, weights, config.draft_vocab_size, target.vocab_size)
    embedding = _embedding(folder, config, weights, target)
    head = filled(folder, make(folder, data, config, weights), weights)
    check_ids(folder, head.target_ids, target.vocab_size, target.name)
    return head, embedding


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights by the names of the speculators format, in fp32 but for the index maps."""
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in read_tensors(folder).items():
        name = name.replace("midlayer.", "layers.0.")
        if any(part in name for part in NOT_NEEDED):
            continue
        if (layer := re.match(r"layers\.(\d+)\.", name)) and int(layer[1]):
            raise ValueError(
                f"{folder} holds several layers ({name!r}), one is supported: use a head of one "
                "layer"
            )
        if name in weights:
            raise ValueError(f"{folder} holds {name!r} twice: {REMEDY}")
        weights[name] = tensor if name in MAPS else in_floats(folder, name, tensor)
    return weights


def _size(folder: Path, data: dict, key: str, otherwise: int, target: LoadedModel) -> int:
    size = said(data, key)
    size = otherwise if size is None else size
    if type(size) is not int or not 1 <= size <= MAX_SIZE:
        what = (
            "drafts from {!r} tokens"
            if key == "draft_vocab_size"
            else "reads features of size {!r}"
        )
        limit = (
            f"the target has {target.vocab_size}"
            if key == "draft_vocab_size"
            else f"1 to {MAX_SIZE} can be"
        )
        raise no_head(folder, target, f"it {what.format(size)}, {limit}")
    return size


def _variants(folder: Path, data: dict, weights: dict[str, torch.Tensor]) -> dict[str, bool]:
    """Variants of the format, from config.json and from the weights that are there."""
    for name in VARIANTS:
        if said(data, name) not in (None, True, False):
            raise ValueError(
                f"{folder}: {name} is {said(data, name)!r}, it must be true or false: correct "
                "config.json"
            )
    if (
        data.get("speculators_model_type") == "eagle3"
        and said(data, "norm_before_residual") is None
    ):
        logger.warning(
            "%s: config.json does not say norm_before_residual; false is taken, the format's "
            "default (vLLM takes true). Where few drafts are accepted, set it in config.json",
            folder,
        )
    return {name: bool(said(data, name)) or SHOWN_BY.get(name) in weights for name in VARIANTS}


def _check_target(folder: Path, config: HeadConfig, target: LoadedModel) -> None:
    size, layer = _hidden_size(target), config.layer
    problem = None
    if config.target_hidden_size != size:
        problem = (
            f"it reads features of size {config.target_hidden_size}, the target's are of {size}"
        )
    elif layer.vocab_size != target.vocab_size:
        problem = (
            f"it is for a vocabulary of {layer.vocab_size} tokens, the target has "
            f"{target.vocab_size}"
        )
    elif config.draft_vocab_size > target.vocab_size:
        problem = (
            f"it drafts from {config.draft_vocab_size} tokens, the target has {target.vocab_size}"
        )
    elif layer.num_hidden_layers != 1:
        problem = f"it has {layer.num_hidden_layers} layers, one is supported"
    elif not config.has_lm_head and layer.hidden_size != size:
        problem = (
            "it has no output embedding (lm_head) and its hidden states are of size "
            f"{layer.hidden_size}, those that the target's output embedding reads are of {size}"
        )
    if problem:
        raise no_head(folder, target, problem)


def _embedding(
    folder: Path, config: HeadConfig, weights: dict[str, torch.Tensor], target: LoadedModel
) -> torch.Tensor | None:
    embedding, wanted = (
        weights.pop("embed_tokens.weight", None),
        (config.layer.vocab_size, config.layer.hidden_size),
    )
    if embedding is not None and tuple(embedding.shape) != wanted:
        raise ValueError(
            f"{folder}: embed_tokens.weight is {tuple(embedding.shape)}, its config says {wanted}: "
            f"{REMEDY}"
        )
    if embedding is None and config.layer.hidden_size != _hidden_size(target):
        problem = (
            f"it has no embedding (embed_tokens) and reads one of size {config.layer.hidden_size}, "
            f"the target's is of {_hidden_size(target)}"
        )
        raise no_head(folder, target, problem)
    return embedding


def _hidden_size(target: LoadedModel) -> int:
    return target.model.config.get_text_config().hidden_size
