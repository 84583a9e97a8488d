"""The kinds of trained heads: which one a folder holds, and what runs and drafts with it."""

from pathlib import Path

import torch

from smartspec.core.drafter import TreeDrafter
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
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner

KINDS = ("eagle", "eagle3", "peagle", "medusa")

Head = EagleHead | Eagle3Head | MedusaHead


def kind_of(folder: Path) -> str | None:
    """The kind of head in a folder, by the names of the `speculators` format; None where it holds none."""
    data = read_json(folder / "config.json")
    if "speculators_model_type" in data:
        return str(data["speculators_model_type"])
    if "medusa_num_heads" in data or data.get("model_type") == "medusa":
        return "medusa"
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
    if kind == "eagle":
        return read_eagle(folder, target), None
    if kind == "medusa":
        return read_medusa(folder, target), None
    if kind in ("eagle3", "peagle"):
        return read_head(folder, target)
    raise ValueError(f"{folder} is a head of type {kind!r}: use one of type {', '.join(KINDS)}")


def head_runner(
    head: Head,
    target: ModelRunner,
    *,
    name: str,
    num_slots: int,
    embedding: torch.Tensor | None = None,
    is_rounded: bool = True,
) -> HeadRunner | MedusaRunner:
    """What runs the passes of a head. target: a runner with its taps. is_rounded: to blocks, where our kernel runs
    it."""
    if isinstance(head, MedusaHead):
        return MedusaRunner(head, target, name=name, num_slots=num_slots)
    runs = PEagleRunner if isinstance(head, PEagleHead) else HeadRunner
    return runs(head, target, name=name, num_slots=num_slots, embedding=embedding, is_rounded=is_rounded)


def head_drafter(runner: HeadRunner | MedusaRunner, target: ModelRunner, num_slots: int, name: str) -> TreeDrafter:
    """What drafts with a head."""
    if isinstance(runner, MedusaRunner):
        return MedusaDrafter(runner, target, num_slots, name)
    if isinstance(runner, PEagleRunner):
        return PEagleDrafter(runner, target, num_slots, name)
    return HeadDrafter(runner, target, num_slots, name)
