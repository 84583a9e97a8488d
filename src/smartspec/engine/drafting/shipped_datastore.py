"""Datastores that come with the package, each in a folder named like the model whose answers it was made of."""

from pathlib import Path

NONE = "none"  # switches the datastore off
DATASTORES = Path(__file__).with_name("datastores")


def datastore_folder(name: str | None, model: str) -> Path | None:
    """Where the datastore of this name lies: a folder; None is the one that comes with the model, if one does. A folder
    of the name none is ./none."""
    if name is None:
        shipped = DATASTORES / model
        return shipped if "/" not in model and shipped.is_dir() else None
    return None if name == NONE else Path(name).expanduser()
