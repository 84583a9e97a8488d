"""Output files of a command: refused before the work is done, not after."""

import os
from pathlib import Path


def check_output(option: str, path: Path) -> None:
    """ValueError naming the option if no file can be written there."""
    from smartspec.bench.report import check_writable

    if os.path.isdir(path):
        raise ValueError(f"{option} {str(path)!r} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}")
    try:
        check_writable(path)
    except OSError as error:
        raise ValueError(
            f"{option} {path} cannot be written ({error.strerror}): name another file"
        ) from error
