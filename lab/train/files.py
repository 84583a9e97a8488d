"""Files that are written whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Have write fill the file, which stays as it was if that fails. Raises OSError naming it (disk
    full, no permission)."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # torch raises the latter where the disk is full
        text = (
            f"cannot write {path} ({error}): make room, then the same command goes on where it "
            "ended"
        )
        raise OSError(text) from error
    finally:
        partial.unlink(missing_ok=True)
