"""The kinds of trained heads: which one a folder holds, and what runs and drafts with it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from smartspec.core.drafter import TreeDrafter
from smartspec.engine.drafting.acceptance_head import read_acceptance
from smartspec.engine.drafting.eagle import EagleHead
from smartspec.engine.drafting.eagle3 import Eagle3Head
from smartspec.engine.drafting.eagle_checkpoint import read_eagle
from smartspec.engine.drafting.head_checkpoint import read_head
from smartspec.engine.drafting.head_drafter import HeadDrafter
from smartspec.engine.drafting.head_files import has_weight, read_json
from smartspec.engine.drafting.head_runner import HeadRunner
from smartspec.engine.drafting.medusa import MedusaHead
from smartspec.engine.drafting.medusa_checkpoint import read_medusa
from smartspec.engine.drafting.medusa_drafter import MedusaDrafter, MedusaRunner
from smartspec.engine.drafting.p_eagle import PEagleHead
from smartspec.engine.drafting.p_eagle_drafter import PEagleDrafter, PEagleRunner
from smartspec.engine.drafting.redrafter import ReDrafterHead
from smartspec.engine.drafting.redrafter_checkpoint import MODEL_TYPE as REDRAFTER
from smartspec.engine.drafting.redrafter_checkpoint import read_redrafter
from smartspec.engine.drafting.redrafter_drafter import ReDrafterDrafter, ReDrafterRunner
from smartspec.engine.drafting.source import DrafterSource, PreparedDrafter
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner

Head = EagleHead | Eagle3Head | MedusaHead | ReDrafterHead


@dataclass(frozen=True)
class HeadKind:
    """head: its module. read: that and its embedding, see load_head. runner: runs its passes. drafter: drafts with
    them, and times them for the profile."""

    head: type[Head]
    read: Callable[[Path, LoadedModel], tuple[Head, torch.Tensor | None]]
    runner: Callable[..., HeadRunner | MedusaRunner | ReDrafterRunner]
    drafter: type[HeadDrafter | MedusaDrafter]


# By the names of the `speculators` format. A new kind is a file and a line here.
HEADS = {
    "eagle": HeadKind(EagleHead, read_eagle, HeadRunner, HeadDrafter),
    "eagle3": HeadKind(Eagle3Head, read_head, HeadRunner, HeadDrafter),
    "peagle": HeadKind(PEagleHead, read_head, PEagleRunner, PEagleDrafter),
    "medusa": HeadKind(MedusaHead, read_medusa, MedusaRunner, MedusaDrafter),
    REDRAFTER: HeadKind(ReDrafterHead, read_redrafter, ReDrafterRunner, ReDrafterDrafter),
}


def kind_of(folder: Path) -> str | None:
    """The kind of head in a folder, by the names of the `speculators` format; None where it holds none."""
    data = read_json(folder / "config.json")
    if "speculators_model_type" in data:
        return str(data["speculators_model_type"])
    if "medusa_num_heads" in data or data.get("model_type") == "medusa":
        return "medusa"
    if data.get("model_type") == REDRAFTER:
        return REDRAFTER
    if "draft_vocab_size" in data or "eagle3" in str(data.get("architectures")).lower():
        return "eagle3"
    # The config of an original EAGLE head is that of its layer; fc joins embedding and hidden state.
    return "eagle" if data.get("num_hidden_layers") == 1 and has_weight(folder, "fc.weight") else None


def is_head(name: str) -> bool:
    """Whether a drafter's name is that of a folder with a trained head."""
    return kind_of(Path(name).expanduser()) is not None


def load_head(folder: Path, target: LoadedModel) -> tuple[Head, torch.Tensor | None]:
    """The head in a folder, for this target in fp32, and its own embedding [V, hidden_size] where it brings one.

    Raises ValueError where it is for another target or of a kind that is not drafted with, OSError where the checkpoint
    is damaged; both name the remedy.
    """
    kind = kind_of(folder)
    if kind not in HEADS:
        raise ValueError(f"{folder} is a head of type {kind!r}: use one of type {', '.join(HEADS)}")
    return HEADS[kind].read(folder, target)


def prepare_head(folder: Path, source: DrafterSource) -> PreparedDrafter:
    """Raises as load_head."""
    head, embedding = load_head(folder, source.target)
    options: dict = {"num_slots": source.num_slots, "is_rounded": source.is_rounded, "foresees": source.foresees}
    if type(head) is Eagle3Head:
        options["acceptance"] = read_acceptance(folder, head.config.layer.hidden_size)
    make = partial(head_drafter, head, name=source.name, **options)
    return PreparedDrafter(make if embedding is None else partial(make, embedding=embedding), head.config.taps)


def head_drafter(
    head: Head, target: ModelRunner, *, name: str, num_slots: int, foresees: bool = False, **options
) -> TreeDrafter:
    """What drafts with a head. target: a runner with its taps. foresees: see HeadDrafter. options: of what runs its
    passes, see HeadRunner."""
    kind = next(kind for kind in HEADS.values() if kind.head is type(head))
    runner = kind.runner(head, target, name=name, num_slots=num_slots, **options)
    return kind.drafter(runner, target, num_slots, name, foresees)
