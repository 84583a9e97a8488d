"""The kinds of heads that are trained."""

from pathlib import Path

import numpy as np
from torch import nn

from lab.heads.medusa.checkpoint import write_medusa
from lab.heads.medusa.head import MedusaHead
from lab.heads.redrafter.checkpoint import write_redrafter
from lab.heads.redrafter.head import ReDrafterHead
from lab.heads.write import write_head
from lab.train.start import (
    initial_head,
    initial_medusa,
    initial_p_eagle,
    initial_redrafter,
    last_tap_rms,
)
from lab.train.unroll import NUM_DEPTHS, TrainedHead
from smartspec.engine.drafting.head.eagle3 import default_taps

KINDS = ("eagle3", "p-eagle", "medusa", "redrafter")
READ_LAST = ("medusa", "redrafter")  # the target's last hidden state alone


def taps_of(kind: str, num_layers: int) -> tuple[int, ...]:
    """The layers of a target that a head of this kind reads."""
    return (num_layers + 1,) if kind in READ_LAST else default_taps(num_layers)


def start_of(
    kind: str, target: nn.Module, target_ids: np.ndarray, data: Path, seed: int
) -> TrainedHead:
    """A head of this kind before training. target_ids: its vocabulary; data: a folder of shards
    with signals.

    Raises ValueError where the signals are not what it reads."""
    if kind == "medusa":
        return initial_medusa(target, target_ids, NUM_DEPTHS)
    if kind == "redrafter":
        return initial_redrafter(target, target_ids, seed)
    num_taps = len(default_taps(target.config.get_text_config().num_hidden_layers))
    rms = last_tap_rms(data, num_taps)
    if kind == "eagle3":
        return initial_head(target, target_ids, rms, seed)
    # any will do: the features that stand beside it are learned
    mask_token_id = int(target_ids[-1])
    return initial_p_eagle(target, target_ids, rms, mask_token_id, NUM_DEPTHS, seed)


def write(folder: Path, head: TrainedHead, target_name: str, architecture: str) -> None:
    """Write it as this package and vLLM load it. Raises OSError naming the file."""
    if isinstance(head, MedusaHead):
        write_medusa(folder, head)
    elif isinstance(head, ReDrafterHead):
        write_redrafter(folder, head, target_name)
    else:
        write_head(folder, head, target_name, architecture)
