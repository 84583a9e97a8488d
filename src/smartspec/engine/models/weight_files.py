"""Weights in several files: an index names them, or their own names count them."""

import json
from collections.abc import Iterable
from pathlib import Path


def indexed_files(index: Path) -> list[Path]:
    """The files that an index names. Raises OSError where it is damaged, or one of them is not
    beside it."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        are_beside = bool(names) and all(Path(name).name == name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OSError(f"{index} is damaged ({error}): download it again") from error
    if not are_beside:
        raise OSError(f"{index} names no files beside it: download it again")
    return all_files(index.parent, names)


def all_files(folder: Path, names: Iterable[str]) -> list[Path]:
    """The files of these names in a folder. Raises OSError where one is missing."""
    paths = [folder / name for name in sorted(names)]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise OSError(
            f"{folder} lacks {missing[0]!r}, {len(missing)} of {len(paths)} files with its "
            "weights: download it again"
        )
    return paths
