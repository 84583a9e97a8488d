"""The kinds of trained heads: which one a folder holds, and what runs and drafts with it.

A kind that is not here is looked up in the repository's lab (lab/heads), where Python finds that
folder."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from smartspec.core.drafter import TreeDrafter
from smartspec.core.lab_tables import WHERE, lab_table
from smartspec.engine.drafting.head.checkpoint.eagle3 import read_head
from smartspec.engine.drafting.head.checkpoint.files import has_weight, read_json
from smartspec.engine.drafting.head.drafter import HeadDrafter
from smartspec.engine.drafting.head.eagle3 import Eagle3Head
from smartspec.engine.drafting.head.runner import HeadRunner
from smartspec.engine.drafting.source import DrafterSource, PreparedDrafter
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner


@dataclass(frozen=True)
class HeadKind:
    """The parts of a kind of head: one reads it, one runs its passes, one drafts with it."""

    head: type[nn.Module]  # its parameters
    read: Callable[[Path, LoadedModel], tuple[nn.Module, torch.Tensor | None]]  # see load_head
    runner: Callable[..., Any]  # runs its passes
    drafter: Callable[..., TreeDrafter]  # drafts with them, and times them for the profile


# By the names of the `speculators` format. A new kind is a file and a line here.
HEADS = {"eagle3": HeadKind(Eagle3Head, read_head, HeadRunner, HeadDrafter)}
# beside an EAGLE-3 head: what says how likely its tokens are accepted
ACCEPTANCE = "acceptance.safetensors"
JUDGED = f"eagle3 with {ACCEPTANCE}"
IN_LAB = ("eagle", "peagle", "medusa", "redrafter", JUDGED)


def kind_of(folder: Path) -> str | None:
    """The kind of head in a folder, by the names of the `speculators` format; None where it holds
    none."""
    data = read_json(folder / "config.json")
    if "speculators_model_type" in data:
        kind = str(data["speculators_model_type"])
        return _kind_of_eagle3(folder) if kind == "eagle3" else kind
    if "medusa_num_heads" in data:  # an original checkpoint
        return "medusa"
    if data.get("model_type") in ("medusa", "redrafter"):
        return str(data["model_type"])
    if "draft_vocab_size" in data or "eagle3" in str(data.get("architectures")).lower():
        return _kind_of_eagle3(folder)
    # The config of an original EAGLE head is that of its layer; fc joins embedding and hidden
    # state.
    return (
        "eagle" if data.get("num_hidden_layers") == 1 and has_weight(folder, "fc.weight") else None
    )


def _kind_of_eagle3(folder: Path) -> str:
    if has_weight(folder, "mask_hidden"):
        return "peagle"
    return JUDGED if (folder / ACCEPTANCE).exists() else "eagle3"


def is_head(name: str) -> bool:
    """True where a drafter's name is that of a folder with a trained head."""
    return kind_of(Path(name).expanduser()) is not None


def all_heads() -> dict[str, HeadKind]:
    """HEADS, and those of the lab where Python finds it."""
    return HEADS | lab_table("heads", "HEADS")


def load_head(folder: Path, target: LoadedModel) -> tuple[nn.Module, torch.Tensor | None]:
    """The head in a folder, for this target in fp32, and its own embedding [V, hidden_size] where
    it brings one.

    Raises ValueError where it is for another target or of a kind that is not drafted with, OSError
    where the checkpoint is damaged; both name the remedy.
    """
    kind = kind_of(folder)
    kinds = HEADS if kind in HEADS else all_heads()
    if kind not in kinds:
        remedy = (
            f"that kind is in {WHERE}" if kind in IN_LAB else f"use one of type {', '.join(kinds)}"
        )
        remedy += f"; or delete {ACCEPTANCE}: the head drafts without it" if kind == JUDGED else ""
        raise ValueError(f"{folder} is a head of type {kind!r}: {remedy}")
    return kinds[kind].read(folder, target)


def prepare_head(folder: Path, source: DrafterSource) -> PreparedDrafter:
    """Raises as load_head."""
    head, embedding = load_head(folder, source.target)
    options: dict = {
        "num_slots": source.num_slots,
        "is_rounded": source.is_rounded,
        "foresees": source.foresees,
    }
    make = partial(head_drafter, head, name=source.name, **options)
    return PreparedDrafter(
        make if embedding is None else partial(make, embedding=embedding), head.config.taps
    )


def head_drafter(
    head: nn.Module,
    target: ModelRunner,
    *,
    name: str,
    num_slots: int,
    foresees: bool = False,
    **options,
) -> TreeDrafter:
    """A drafter with this head. target: a runner with its taps. foresees: see HeadDrafter. options:
    of the runner of its passes, see HeadRunner."""
    kind = next((kind for kind in HEADS.values() if kind.head is type(head)), None)
    kind = kind or next(kind for kind in all_heads().values() if kind.head is type(head))
    runner = kind.runner(head, target, name=name, num_slots=num_slots, **options)
    return kind.drafter(runner, target, num_slots, name, foresees)
