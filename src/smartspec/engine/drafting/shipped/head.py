"""Heads by name: a folder, or the one that smartspec-models has for the model it was trained
for."""

from pathlib import Path

from smartspec.engine.drafting.shipped.files import missing_files, shipped_folder

SHIPPED = "head"  # its name as a drafter


def has_shipped_head(model: str) -> bool:
    """True where a head is installed for the model of this name."""
    return shipped_folder("heads", model) is not None


def head_folder(name: str, model: str) -> Path:
    """The folder of a drafter of this name, if that is a head: the one that comes with the model,
    or a folder.

    Raises ValueError where none comes with the model."""
    if name != SHIPPED:
        return Path(name).expanduser()
    if (folder := shipped_folder("heads", model)) is not None:
        return folder
    if (missing := missing_files(model)) is not None:
        raise ValueError(f"drafter {SHIPPED!r}: {missing}")
    raise ValueError(
        f"no head comes with {model!r}: leave {SHIPPED!r} out, or give the folder of a head "
        f"(docs/training.md says how to train one; ./{SHIPPED} is a folder of that name)"
    )
