"""Files that are written whole or not at all, in folders to which one run at a time writes."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Inside the block no other run writes to this folder, which is made where it is not there.
    Raises ValueError naming it where one does already."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"another run writes to {folder}: wait until it has ended, or name another folder"
            ) from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)  # which unlocks it
