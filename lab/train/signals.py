"""What the target computed at each token of the training rows, on disk beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.train.files import write_whole
from lab.train.shards import digest_of, next_shard, shard_paths
from smartspec.texts.files import read_arrays
from smartspec.texts.shards import TokenRow

NUM_CANDIDATES = 20
NAMES = ("features", "top_ids", "top_probs")
ANEW = "delete it, then the same command computes it anew"
SIGNALS = "signals of training rows ({problem}): " + ANEW


@dataclass(frozen=True)
class Signals:
    """Of a row of n tokens whose answer begins at s: features float16 [n - 1, feature_size]
    (float32 where float16 cannot hold them), what the target's tapped layers computed at each token
    but the last; top_ids int32, top_probs float16 [n - s, NUM_CANDIDATES], the target's likeliest
    tokens in the place of each token of the answer."""

    features: np.ndarray
    top_ids: np.ndarray
    top_probs: np.ndarray

    def shorten(self, num_tokens: int) -> "Signals":
        """Those of the row without its last tokens; num_tokens: of the answer, to keep."""
        num_dropped = len(self.top_ids) - num_tokens
        kept = slice(len(self.features) - num_dropped)
        return Signals(self.features[kept], self.top_ids[:num_tokens], self.top_probs[:num_tokens])


def signals_of(shard: Path) -> Path:
    """Where the signals of a shard are kept: under its own number."""
    return shard.parent.parent / "signals" / shard.name


def signals_path(folder: Path, index: int) -> Path:
    """The same by the place of the shard in shard_paths; after the last one, of the shard that is
    written next."""
    paths = shard_paths(folder)
    return signals_of(paths[index] if index < len(paths) else next_shard(folder))


def write_signals(path: Path, signals: Sequence[Signals], rows: Sequence[TokenRow] = ()) -> None:
    """Keep the signals of a shard. rows: its own, by which it will be known; without them, by its
    lengths alone. Raises OSError naming the file (disk full, no permission)."""
    arrays = {name: np.concatenate([getattr(each, name) for each in signals]) for name in NAMES}
    if rows:
        arrays["rows"] = np.array(digest_of(rows))
    write_whole(path, lambda file: np.savez(file, **arrays))


def read_signals(path: Path, rows: Sequence[TokenRow]) -> list[Signals]:
    """The signals of a shard's rows. Raises ValueError naming the file and the remedy where they
    are not these."""
    try:
        features, ids, probs, digest = read_arrays(path, (*NAMES, "rows"), SIGNALS)
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} is missing: give the command again, it is computed first"
        ) from error
    if features is None or ids is None or probs is None:
        raise ValueError(f"{path} is not {SIGNALS.format(problem='it holds something else')}")
    tokens = np.array([len(row.token_ids) - 1 for row in rows])
    answers = np.array([row.num_answer_tokens for row in rows])
    is_of_rows = (
        len(features) == tokens.sum() and len(ids) == answers.sum() and ids.shape == probs.shape
    )
    if not is_of_rows or (digest is not None and str(digest) != digest_of(rows)):
        raise ValueError(f"{path} belongs to other training rows: {ANEW}")
    if not np.isfinite(features).all() or not np.isfinite(probs).all():
        raise ValueError(f"{path} holds values that are not finite: {ANEW}")
    pieces = (
        np.split(array, np.cumsum(n)[:-1])
        for array, n in ((features, tokens), (ids, answers), (probs, answers))
    )
    return [Signals(*piece) for piece in zip(*pieces, strict=True)]
