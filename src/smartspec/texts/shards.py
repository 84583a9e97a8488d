"""Texts for training on disk: a shard, which is a file of token rows."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from smartspec.drafters.tokenizer_digest import PROBE
from smartspec.texts.files import read_arrays

SHARD = "a shard of training rows ({problem}): delete it, the other shards stay as they are"


@dataclass(frozen=True)
class TokenRow:
    """A conversation."""

    token_ids: np.ndarray  # int32 [n]
    answer_start: int  # where the answer begins: 0 < answer_start < n

    @property
    def num_answer_tokens(self) -> int:
        return len(self.token_ids) - self.answer_start


def read_shard(path: Path) -> list[TokenRow]:
    """The rows of a shard. Raises ValueError naming the file and the remedy where it is not one, or
    is gone."""
    try:
        token_ids, lengths, starts = read_arrays(
            path, ("token_ids", "lengths", "answer_starts"), SHARD
        )
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} has been deleted: give the command again, it goes on with the other shards"
        ) from error
    if token_ids is None or lengths is None or starts is None:
        raise ValueError(f"{path} is not {SHARD.format(problem='it holds something else')}")
    is_whole = all(
        np.issubdtype(array.dtype, np.integer) and array.ndim == 1
        for array in (token_ids, lengths, starts)
    )
    is_whole = is_whole and len(lengths) == len(starts) > 0 and lengths.sum() == len(token_ids)
    if not is_whole or np.any(starts < 1) or np.any(starts >= lengths) or token_ids.min() < 0:
        raise ValueError(
            f"{path} is not {SHARD.format(problem='its rows are empty or do not add up')}"
        )
    pieces = np.split(token_ids.astype(np.int32), np.cumsum(lengths)[:-1])
    return [TokenRow(piece, int(start)) for piece, start in zip(pieces, starts, strict=True)]


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Tells tokenizers apart by what they do: SHA-256 of the vocabulary and of the tokens of
    PROBE."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    probe = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    return hashlib.sha256(json.dumps([vocabulary, probe]).encode()).hexdigest()


def tokenizer_of(path: Path) -> str:
    """The digest of the tokenizer that made a shard; "" where it does not say."""
    (digest,) = read_arrays(path, ("tokenizer",), SHARD)
    return "" if digest is None else str(digest)
