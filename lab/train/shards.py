"""A folder of shards: numbered files of token rows. A number belongs to one shard, whatever others
become."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.train.files import write_whole
from smartspec.texts.shards import TokenRow, read_shard


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a data folder in the order of their numbers, which may have gaps."""
    return sorted(
        (p for p in (folder / "tokens").glob("*.npz") if p.stem.isdecimal()),
        key=lambda path: int(path.stem),
    )


def next_shard(folder: Path) -> Path:
    """Where the next shard goes: after the highest number."""
    paths = shard_paths(folder)
    return folder / "tokens" / f"{int(paths[-1].stem) + 1 if paths else 0:05d}.npz"


def write_shard(folder: Path, rows: Sequence[TokenRow], tokenizer: str = "") -> Path:
    """Append a shard of these rows to a data folder. tokenizer: digest of the one that made them.
    Raises OSError naming the file (disk full, no permission)."""
    path = next_shard(folder)
    token_ids = np.concatenate([row.token_ids for row in rows])
    narrow = np.uint16 if token_ids.max() < 2**16 else np.int32
    arrays = {
        "token_ids": token_ids.astype(narrow),
        "lengths": np.array([len(row.token_ids) for row in rows], dtype=np.int32),
        "answer_starts": np.array([row.answer_start for row in rows], dtype=np.int32),
        "tokenizer": np.array(tokenizer),
    }
    write_whole(path, lambda file: np.savez(file, **arrays))
    return path


def digest_of(rows: Sequence[TokenRow]) -> str:
    """Tells shards apart by what they hold: SHA-256 of their rows."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(np.array([len(row.token_ids), row.answer_start], dtype=np.int64).tobytes())
        digest.update(row.token_ids.astype(np.int32).tobytes())
    return digest.hexdigest()


def read_rows(folder: Path) -> Iterator[TokenRow]:
    """All rows of a data folder. Raises ValueError naming the folder where it has none."""
    paths = shard_paths(folder)
    if not paths:
        raise ValueError(
            f"{folder} holds no training rows (tokens/*.npz): generate some with --generate TOKENS"
        )
    for path in paths:
        yield from read_shard(path)


def num_answer_tokens(folder: Path) -> int:
    """Answer tokens of all shards of a data folder."""
    return sum(row.num_answer_tokens for path in shard_paths(folder) for row in read_shard(path))
