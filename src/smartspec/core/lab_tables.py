"""Tables of the repository's lab by name, where Python finds the folder lab/. Nothing here imports
it by statement."""

import importlib
from typing import Any

from smartspec.core.own_class import search_current_folder

WHERE = "the repository's lab: start in the repository's folder, or name it in PYTHONPATH"


def lab_table(module: str, name: str) -> dict[str, Any]:
    """Return the dict of that name in lab.MODULE; an empty one where there is no such module. It is
    searched as Python does, the current directory first."""
    search_current_folder()
    try:
        return dict(getattr(importlib.import_module(f"lab.{module}"), name, {}))
    except ModuleNotFoundError as error:
        if error.name in ("lab", f"lab.{module}"):
            return {}
        raise
