"""Heads that come with the package, each in a folder named like the model it was trained for."""

from pathlib import Path

SHIPPED = "head"  # its name as a drafter
HEADS = Path(__file__).with_name("heads")


def has_shipped_head(model: str) -> bool:
    """Whether a head comes with the package for the model of this name."""
    return "/" not in model and (HEADS / model / "config.json").is_file()


def head_folder(name: str, model: str) -> Path:
    """Where a drafter of this name would lie if it is a head: the one that comes with the model, or a folder.

    Raises ValueError where none comes with the model."""
    if name != SHIPPED:
        return Path(name).expanduser()
    if not has_shipped_head(model):
        raise ValueError(
            f"no head comes with {model!r}: leave {SHIPPED!r} out, or give the folder of a head (docs/training.md says "
            f"how to train one; ./{SHIPPED} is a folder of that name)"
        )
    return HEADS / model
