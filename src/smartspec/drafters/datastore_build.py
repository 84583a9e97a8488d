"""Counts n-grams of texts and writes a datastore of them (datastore.py)."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from smartspec.drafters.datastore import HEADER, NGRAMS, DatastoreHeader
from smartspec.drafters.recycling import MAX_CONTEXT, TOKEN_BITS

# of a next token that is kept: with 2 a store is 1.7 times as large and its drafts hardly better
LEAST_COUNT = 3
MOST_NEXT = 8  # tokens of a context that are kept: no tree takes more of its children
CHUNK_TOKENS = 1 << 21  # that are counted at once: bounds the memory
CARD = """# Datastore for {model}

What followed n-grams of up to three tokens in {num_texts:,} texts of {num_tokens:,} tokens: {num_contexts:,} contexts
with {num_pairs:,} next tokens, each of which followed at least {least_count} times. Made by
`smartspec datastore build` for `smartspec serve --datastore FOLDER`, of these files and folders:

{sources}
"""  # noqa: E501


@dataclass(frozen=True)
class _Pairs:
    """Different pairs of a context and its next token, ascending: uint64, int64, and how often each
    was seen, int64."""

    keys: np.ndarray
    tokens: np.ndarray
    counts: np.ndarray


class NgramCounts:
    """The number of times that each token followed each context of one to MAX_CONTEXT tokens of the
    same text."""

    def __init__(self) -> None:
        self.num_texts = self.num_tokens = 0
        self._pairs = _Pairs(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
        self._waiting: list[_Pairs] = []
        self._num_waiting = 0

    def add(self, token_ids: np.ndarray, start: int = 0) -> None:
        """Count the tokens of a text, int [n], from that place on; those before are context."""
        self.num_texts += 1
        self.num_tokens += len(token_ids) - start
        token_ids = token_ids[max(start - MAX_CONTEXT, 0) :].astype(np.int64)
        start = min(start, MAX_CONTEXT)
        for length in range(1, MAX_CONTEXT + 1):
            ends = np.arange(max(start, length), len(token_ids))
            keys = np.zeros(len(ends), dtype=np.uint64)
            for back in range(length, 0, -1):
                keys = keys << np.uint64(TOKEN_BITS) | (token_ids[ends - back] + 1).astype(
                    np.uint64
                )
            self._waiting.append(_Pairs(keys, token_ids[ends], np.ones(len(ends), dtype=np.int64)))
            self._num_waiting += len(ends)
        if self._num_waiting >= CHUNK_TOKENS * MAX_CONTEXT:
            self.pairs()

    def pairs(self) -> _Pairs:
        """All that was counted."""
        self._pairs = _merged([self._pairs, *self._waiting])
        self._waiting, self._num_waiting = [], 0
        return self._pairs


def _merged(some: list[_Pairs]) -> _Pairs:
    keys, tokens, counts = [
        np.concatenate([getattr(each, name) for each in some]) for name in _Pairs.__annotations__
    ]
    if not len(keys):
        return some[0]
    order = np.lexsort((tokens, keys))
    keys, tokens = keys[order], tokens[order]
    begins = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]) | (tokens[1:] != tokens[:-1])))
    return _Pairs(keys[begins], tokens[begins], np.add.reduceat(counts[order], begins))


def write_datastore(
    folder: Path, counts: NgramCounts, least_count: int = LEAST_COUNT, **about
) -> DatastoreHeader:
    """Write what was counted to a new folder: whole, or nothing is there. about: model, tokenizer,
    vocab_size and sources of the header.

    Raises ValueError if the folder exists or no n-gram is frequent enough, OSError naming the
    folder and the remedy if it cannot be written.
    """
    pairs = counts.pairs()
    if not (pairs.counts >= least_count).any():
        raise ValueError(
            f"no token followed the same tokens {least_count} times in {counts.num_tokens:,} "
            "tokens: give more text"
        )
    arrays = _arrays(pairs, least_count)
    header = DatastoreHeader(
        num_texts=counts.num_texts,
        num_tokens=counts.num_tokens,
        least_count=least_count,
        num_contexts=len(arrays["keys"]),
        num_buckets=len(arrays["buckets"]) - 1,
        num_pairs=len(arrays["tokens"]),
        **about,
    )
    card = asdict(header) | {"sources": "\n".join(f"* {name}" for name in header.sources)}
    with _new_folder(folder) as made:
        with (made / NGRAMS).open("wb") as file:
            for name, (kind, _) in header.arrays.items():
                file.write(arrays[name].astype(f"<{kind}").tobytes())
            file.flush()
            os.fsync(file.fileno())
        (made / HEADER).write_text(json.dumps(asdict(header), indent=1) + "\n", encoding="utf-8")
        (made / "README.md").write_text(CARD.format(**card), encoding="utf-8")
    return header


def check_new(folder: Path) -> None:
    """ValueError if a datastore cannot be written there, since something is."""
    if folder.exists():
        raise ValueError(f"{folder} exists: name a new folder, or delete it")


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside the one that is wanted, which becomes that one if all goes well and else is
    deleted."""
    check_new(folder)
    made = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        yield made
        made.chmod(0o755)  # mkdtemp makes folders that only this user can read
        made.rename(folder)
    except OSError as error:
        text = (
            f"cannot write {folder} ({error.strerror}): make room or name another folder; nothing "
            "was left there"
        )
        raise OSError(text) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _arrays(pairs: _Pairs, least_count: int) -> dict[str, np.ndarray]:
    """The arrays of ngrams.bin."""
    contexts, begins = np.unique(pairs.keys, return_index=True)
    totals = np.add.reduceat(pairs.counts, begins)
    pairs = _chosen(pairs, pairs.counts >= least_count)
    num_buckets = max(len(np.unique(pairs.keys)) // 2, 1)
    bucket = pairs.keys % np.uint64(num_buckets)
    pairs = _chosen(pairs, np.lexsort((pairs.tokens, -pairs.counts, pairs.keys, bucket)))
    begins = _begins(pairs.keys)
    rank = np.arange(len(pairs.keys)) - np.repeat(begins, np.diff(begins, append=len(pairs.keys)))
    pairs = _chosen(pairs, rank < MOST_NEXT)
    begins = _begins(pairs.keys)
    keys = pairs.keys[begins]
    ends = np.bincount(
        (keys % np.uint64(num_buckets)).astype(np.int64), minlength=num_buckets
    ).cumsum()
    return {
        "keys": keys,
        "buckets": np.append(0, ends),
        "first": np.append(begins, len(pairs.keys)),
        "totals": totals[np.searchsorted(contexts, keys)],
        "counts": pairs.counts,
        "tokens": pairs.tokens,
    }


def _chosen(pairs: _Pairs, which: np.ndarray) -> _Pairs:
    return _Pairs(pairs.keys[which], pairs.tokens[which], pairs.counts[which])


def _begins(keys: np.ndarray) -> np.ndarray:
    """The places where the pairs of each context begin, in pairs that stand together by context."""
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
