"""The layers of the target that a head reads: those that its config.json names, or the usual ones,
which is said."""

import logging
from pathlib import Path

import torch

from smartspec.engine.drafting.head.checkpoint.layer import said
from smartspec.engine.drafting.head.eagle3 import default_taps
from smartspec.engine.models.loaded_model import LoadedModel

KEY = "eagle_aux_hidden_state_layer_ids"
RULE = "layers 2, L / 2 and L - 3, which EAGLE-3's own code, speculators and vLLM take"

logger = logging.getLogger(__name__)


def read_taps(
    folder: Path, data: dict, fc: torch.Tensor | None, size: int, target: LoadedModel
) -> tuple[int, ...]:
    """The taps in ascending order, which is how vLLM puts features side by side. fc: the head's
    weight that reads them, of size values each.

    Raises ValueError where the head reads none, or others than the target has, or than fc reads."""
    if said(data, "use_aux_hidden_state") is False:
        raise ValueError(
            f"{folder} reads the target's last hidden state alone (use_aux_hidden_state is false), "
            "which is not supported for EAGLE-3: use a head that reads several layers"
        )
    named = said(data, KEY)
    taps = [*named] if isinstance(named, list | tuple) else [] if named is None else [named]
    number = (
        fc.shape[1] // size
        if fc is not None and fc.dim() == 2 and fc.shape[1] % size == 0
        else None
    )
    if not taps:
        taps = _usual_taps(folder, number, target)
    if not all(type(tap) is int and 1 <= tap <= target.num_layers for tap in taps):
        raise no_head(folder, target, f"it taps layers {taps}, the target has {target.num_layers}")
    if number is not None and number != len(taps):
        raise ValueError(
            f"{folder}: fc.weight reads {number} layers of size {size}, its config.json names "
            f"{len(taps)} ({taps}): set {KEY} in config.json to those that it was trained on"
        )
    return tuple(sorted(taps))


def _usual_taps(folder: Path, number: int | None, target: LoadedModel) -> list[int]:
    taps = list(default_taps(target.num_layers))
    remedy = f"set {KEY} in config.json to those that it was trained on"
    if number not in (None, len(taps)):
        raise ValueError(
            f"{folder}: fc.weight reads {number} layers of the target, config.json does not say "
            f"which: {remedy}"
        )
    if min(taps) < 1:
        raise ValueError(
            f"{folder}: config.json does not say which layers of the target it reads, and a target "
            f"of {target.num_layers} layers has not the usual ones ({RULE}): {remedy}"
        )
    logger.warning(
        "%s: config.json does not say which layers of the target it reads; %s are taken (%s; L is "
        "%d). A head that was trained on others is accepted hardly ever: %s",
        *(folder, taps, RULE, target.num_layers, remedy),
    )
    return taps


def no_head(folder: Path, target: LoadedModel, problem: str) -> ValueError:
    """The error for a head of another target."""
    return ValueError(
        f"{folder} is no head for {target.name!r}: {problem}; use one that was trained for this "
        "target"
    )
