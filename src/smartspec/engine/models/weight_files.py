"""The files with the weights of a checkpoint: one, or several that an index names."""

import json
from collections.abc import Iterable
from pathlib import Path


def weight_files(folder: Path, names: Iterable[str]) -> list[Path]:
    """The file of the first of these names that is there, or all that its index names; none where
    none is there. Raises OSError where a part is missing, or the index that says what is in which.
    """
    for whole in names:
        index = folder / f"{whole}.index.json"
        if (folder / whole).is_file():
            return [folder / whole]
        if index.is_file():
            return _indexed_files(index)
        stem, _, ending = whole.rpartition(".")
        if parts := sorted(folder.glob(f"{stem}-*-of-*.{ending}")):
            raise OSError(
                f"{folder} holds {parts[0].name}, but no {index.name}: download the checkpoint "
                "again"
            )
    return []


def _indexed_files(index: Path) -> list[Path]:
    """The files that an index names. Raises OSError where it is damaged, or one of them is not
    beside it."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        are_beside = bool(names) and all(Path(name).name == name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OSError(f"{index} is damaged ({error}): download it again") from error
    if not are_beside:
        raise OSError(f"{index} names no files beside it: download it again")
    paths = [index.with_name(name) for name in sorted(names)]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise OSError(
            f"{index.parent} lacks {missing[0]!r}, {len(missing)} of {len(paths)} files with its "
            "weights: download it again"
        )
    return paths
