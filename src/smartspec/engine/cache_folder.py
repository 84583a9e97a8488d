"""Where everything is kept that is made once on a machine: the converted model, profiles, compiled kernels."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$SMARTSPEC_CACHE, or ~/.cache/smartspec."""
    return Path(os.environ.get("SMARTSPEC_CACHE") or Path.home() / ".cache" / "smartspec")
