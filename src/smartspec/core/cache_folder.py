"""The folder for what is kept on a machine."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """$SMARTSPEC_CACHE, or ~/.cache/smartspec; a folder of this user in the one for temporary files
    where there is no home, as in a container whose user has no name."""
    if folder := environment.get("SMARTSPEC_CACHE"):
        return Path(folder)
    try:
        return Path.home() / ".cache" / "smartspec"
    except RuntimeError:
        return Path(tempfile.gettempdir(), f"smartspec-{os.getuid()}")
