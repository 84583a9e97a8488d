"""Files of training: each is there whole or not at all, and one run at a time writes to a
folder."""

import fcntl
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np


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


def read_arrays(path: Path, names: Sequence[str], what: str) -> list[np.ndarray | None]:
    """Arrays of an .npz file by name, None for those it lacks.

    what: it should be, and what to do where it is not, with a place for {problem}: ValueError says
    so. Raises FileNotFoundError where there is no such file (any more)."""
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):  # numpy would say that it may be a pickle
                raise ValueError("damaged or cut short")
            arrays = np.load(file)
            return [arrays.get(name) for name in names]
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # numpy and zipfile raise many kinds for what is one thing here
        raise ValueError(
            f"{path} is not {what.format(problem=error or type(error).__name__)}"
        ) from error
