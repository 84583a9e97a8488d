"""What the target computed at each token of the training rows, on disk beside them."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smartspec.train.shards import TokenRow, write_atomically

NUM_CANDIDATES = 20


@dataclass(frozen=True)
class Signals:
    """Of a row of n tokens whose answer begins at s: features float16 [n - 1, feature_size], what the target's tapped
    layers computed at each token but the last; top_ids int32, top_probs float16 [n - s, NUM_CANDIDATES], the target's
    likeliest tokens in the place of each token of the answer."""

    features: np.ndarray
    top_ids: np.ndarray
    top_probs: np.ndarray

    def shorten(self, num_tokens: int) -> "Signals":
        """Those of the row without its last tokens; num_tokens: of the answer, to keep."""
        num_dropped = len(self.top_ids) - num_tokens
        kept = slice(len(self.features) - num_dropped)
        return Signals(self.features[kept], self.top_ids[:num_tokens], self.top_probs[:num_tokens])


def signals_path(folder: Path, number: int) -> Path:
    """Where the signals of a data folder's shard of this number are kept."""
    return folder / "signals" / f"{number:05d}.npz"


def write_signals(path: Path, rows: Sequence[Signals]) -> None:
    """Keep the signals of a shard's rows. Raises OSError naming the file (disk full, no permission)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ("features", "top_ids", "top_probs")
    write_atomically(path, **{name: np.concatenate([getattr(row, name) for row in rows]) for name in names})


def read_signals(path: Path, rows: Sequence[TokenRow]) -> list[Signals]:
    """The signals of a shard's rows. Raises ValueError naming the file and the remedy where they are not these."""
    try:
        with np.load(path) as arrays:
            features, ids, probs = (arrays[name] for name in ("features", "top_ids", "top_probs"))
    except (ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} does not hold signals of training rows ({error}): delete it") from error
    tokens = np.array([len(row.token_ids) - 1 for row in rows])
    answers = np.array([row.num_answer_tokens for row in rows])
    if len(features) != tokens.sum() or len(ids) != answers.sum() or len(probs) != len(ids):
        raise ValueError(f"{path} belongs to other training rows: delete it")
    pieces = (np.split(array, np.cumsum(n)[:-1]) for array, n in ((features, tokens), (ids, answers), (probs, answers)))
    return [Signals(*piece) for piece in zip(*pieces, strict=True)]
