"""Arrays in files: what is there, or one sentence on what is wrong."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np


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
