"""Where everything is kept that is made once on a machine: what is read out of models, profiles, compiled kernels."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """$SMARTSPEC_CACHE, or ~/.cache/smartspec."""
    return Path(os.environ.get("SMARTSPEC_CACHE") or Path.home() / ".cache" / "smartspec")


def make_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """The folder, filled by `write` where it is not there yet.

    It is written beside its final place and renamed, so that what exists under this name is complete. Raises OSError
    with the remedy where the cache cannot be written.
    """
    if folder.exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as parent:
            made = Path(parent) / folder.name
            made.mkdir()
            write(made)
            _publish(made, folder)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise OSError(f"cannot write {folder.parent}: set SMARTSPEC_CACHE to a folder that can be written") from error
    return folder


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process finished first, and its copy is as good
            raise
