"""The package smartspec-models: trained heads and datastores, each in a folder named like its
model."""

import importlib.util
from pathlib import Path

from smartspec.engine.models.default_model import DEFAULT_MODEL

REMEDY = "pip install ./models in a clone of SmartSpec"


def models_folder() -> Path | None:
    """The package's folder; None where it is not installed."""
    spec = importlib.util.find_spec("smartspec_models")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def shipped_folder(kind: str, model: str) -> Path | None:
    """The folder of that kind, heads or datastores, for the model of this name; None where there is
    none."""
    folder = models_folder()
    if folder is None or "/" in model:
        return None
    return folder / kind / model if (folder / kind / model).is_dir() else None


def missing_files(model: str) -> str | None:
    """A sentence where files for this model exist and are not installed."""
    if model != DEFAULT_MODEL or models_folder() is not None:
        return None
    return (
        f"smartspec-models is not installed, so {model} drafts without its head and its datastore: "
        f"{REMEDY}"
    )
