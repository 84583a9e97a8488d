"""Texts for training on disk: numbered files of token rows, each written whole or not at all."""

import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class TokenRow:
    """A conversation: token_ids int32 [n], the answer begins at answer_start (0 < answer_start < n)."""

    token_ids: np.ndarray
    answer_start: int

    @property
    def num_answer_tokens(self) -> int:
        return len(self.token_ids) - self.answer_start


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a data folder in the order of their numbers."""
    return sorted((folder / "tokens").glob("[0-9]*.npz"))


def write_shard(folder: Path, rows: Sequence[TokenRow]) -> Path:
    """Append a shard of these rows to a data folder. Raises OSError naming the file (disk full, no permission)."""
    path = folder / "tokens" / f"{len(shard_paths(folder)):05d}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    token_ids = np.concatenate([row.token_ids for row in rows])
    narrow = np.uint16 if token_ids.max() < 2**16 else np.int32
    write_atomically(
        path,
        token_ids=token_ids.astype(narrow),
        lengths=np.array([len(row.token_ids) for row in rows], dtype=np.int32),
        answer_starts=np.array([row.answer_start for row in rows], dtype=np.int32),
    )
    return path


def read_shard(path: Path) -> list[TokenRow]:
    """The rows of a shard. Raises ValueError naming the file and the remedy where it is not one."""
    try:
        with np.load(path) as arrays:
            token_ids, lengths, starts = (arrays[name] for name in ("token_ids", "lengths", "answer_starts"))
    except (ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is not a shard of training rows ({error}): delete it") from error
    if lengths.sum() != len(token_ids) or np.any(starts < 1) or np.any(starts >= lengths):
        raise ValueError(f"{path} is not a shard of training rows (its rows are empty or do not add up): delete it")
    pieces = np.split(token_ids.astype(np.int32), np.cumsum(lengths)[:-1])
    return [TokenRow(piece, int(start)) for piece, start in zip(pieces, starts, strict=True)]


def read_rows(folder: Path) -> Iterator[TokenRow]:
    """All rows of a data folder. Raises ValueError naming the folder where it has none."""
    paths = shard_paths(folder)
    if not paths:
        raise ValueError(f"{folder} holds no training rows (tokens/*.npz): generate some with --generate TOKENS")
    for path in paths:
        yield from read_shard(path)


def num_answer_tokens(folder: Path) -> int:
    """Answer tokens of all shards of a data folder."""
    return sum(row.num_answer_tokens for path in shard_paths(folder) for row in read_shard(path))


def write_atomically(path: Path, **arrays: np.ndarray) -> None:
    """An .npz file that is there whole or not at all."""
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        partial.unlink(missing_ok=True)


def cannot_write(path: Path, error: Exception) -> OSError:
    """What to raise where a file of data or training could not be written: it is as it was before."""
    return OSError(f"cannot write {path} ({error}): make room, then the same command goes on where it ended")
