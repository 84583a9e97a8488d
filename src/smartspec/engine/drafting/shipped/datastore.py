"""Datastores by name: a folder, or the one that smartspec-models has for the model whose answers it
was made of."""

from pathlib import Path

from smartspec.engine.drafting.shipped.files import shipped_folder

NONE = "none"  # switches the datastore off


def datastore_folder(name: str | None, model: str) -> Path | None:
    """The folder of the datastore of this name; None is the one that comes with the model, if one
    does. A folder of the name none is ./none."""
    if name is None:
        return shipped_folder("datastores", model)
    return None if name == NONE else Path(name).expanduser()
