"""Texts for training on disk: numbered files of token rows. A number belongs to one shard, whatever others become."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from smartspec.drafters.tokenizer_digest import PROBE
from smartspec.texts.files import read_arrays, write_whole

SHARD = "a shard of training rows ({problem}): delete it, the other shards stay as they are"


@dataclass(frozen=True)
class TokenRow:
    """A conversation: token_ids int32 [n], the answer begins at answer_start (0 < answer_start < n)."""

    token_ids: np.ndarray
    answer_start: int

    @property
    def num_answer_tokens(self) -> int:
        return len(self.token_ids) - self.answer_start


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a data folder in the order of their numbers, which may have gaps."""
    return sorted((p for p in (folder / "tokens").glob("*.npz") if p.stem.isdecimal()), key=lambda path: int(path.stem))


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


def read_shard(path: Path) -> list[TokenRow]:
    """The rows of a shard. Raises ValueError naming the file and the remedy where it is not one, or is gone."""
    try:
        token_ids, lengths, starts = read_arrays(path, ("token_ids", "lengths", "answer_starts"), SHARD)
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} has been deleted: give the command again, it goes on with the other shards"
        ) from error
    if token_ids is None or lengths is None or starts is None:
        raise ValueError(f"{path} is not {SHARD.format(problem='it holds something else')}")
    is_whole = all(np.issubdtype(array.dtype, np.integer) and array.ndim == 1 for array in (token_ids, lengths, starts))
    is_whole = is_whole and len(lengths) == len(starts) > 0 and lengths.sum() == len(token_ids)
    if not is_whole or np.any(starts < 1) or np.any(starts >= lengths) or token_ids.min() < 0:
        raise ValueError(f"{path} is not {SHARD.format(problem='its rows are empty or do not add up')}")
    pieces = np.split(token_ids.astype(np.int32), np.cumsum(lengths)[:-1])
    return [TokenRow(piece, int(start)) for piece, start in zip(pieces, starts, strict=True)]


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Tells tokenizers apart by what they do: SHA-256 of the vocabulary and of the tokens of PROBE."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    probe = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    return hashlib.sha256(json.dumps([vocabulary, probe]).encode()).hexdigest()


def tokenizer_of(path: Path) -> str:
    """The digest of the tokenizer that made a shard; "" where it does not say."""
    (digest,) = read_arrays(path, ("tokenizer",), SHARD)
    return "" if digest is None else str(digest)


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
        raise ValueError(f"{folder} holds no training rows (tokens/*.npz): generate some with --generate TOKENS")
    for path in paths:
        yield from read_shard(path)


def num_answer_tokens(folder: Path) -> int:
    """Answer tokens of all shards of a data folder."""
    return sum(row.num_answer_tokens for path in shard_paths(folder) for row in read_shard(path))
