"""The results of a profiling run before serving, in a JSON file: `python benchmarks/policies.py
profile` writes one.

    {"best_lengths": {"1": 7, "2": 6, "4": 5}, "acceptance_by_rank": [0.71, 0.1, 0.05]}

best_lengths: the best draft length by number of decoding requests, ascending. acceptance_by_rank:
the share of drafted tokens in which the likeliest child, the second, the third, ... is the target's
token.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

REMEDY = "make it with python benchmarks/policies.py profile"


def read_best_lengths(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of requests, ascending, and the best length of each: int [N] both. ValueError
    names the value that is wrong."""
    found = _field(path, "best_lengths")
    try:
        sizes = np.array([int(size) for size in found], dtype=np.int64)
        lengths = np.array([int(length) for length in found.values()], dtype=np.int64)
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f"best_lengths in {path} is {found!r}, no lengths by number of requests: {REMEDY}"
        ) from None
    if not len(sizes) or (np.diff(sizes, prepend=0) <= 0).any() or (lengths < 0).any():
        raise ValueError(
            f"best_lengths in {path} has sizes {sizes.tolist()}: give them ascending, lengths from "
            "0 on"
        )
    return sizes, lengths


def read_acceptance_by_rank(path: str) -> np.ndarray:
    """Return the acceptance by rank: float [ranks]. ValueError names the value that is wrong."""
    found = _field(path, "acceptance_by_rank")
    try:
        shares = np.array(found, dtype=float)
    except (TypeError, ValueError):
        shares = np.zeros(0)
    if (
        shares.ndim != 1
        or not len(shares)
        or not (shares >= 0).all()
        or not shares.sum() <= 1
        or shares[0] == 1
    ):
        raise ValueError(
            f"acceptance_by_rank in {path} is {found!r}, no shares of at most 1 together: {REMEDY}"
        )
    return shares


def _field(path: str, name: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))[name]
    except OSError as error:
        raise ValueError(f"cannot read the profiling run {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is no profiling run with {name} ({error!r}): {REMEDY}") from error
