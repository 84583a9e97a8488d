"""Datastore: what followed n-grams in gathered texts, with counts, in a file that is mapped, not
read.

Source: REST (He et al., 2023, arXiv 2311.08252) and SSSD (arXiv 2411.05894). These search a suffix
array of the texts; SuffixDecoding (arXiv 2411.04975) walks a suffix tree. Here the contexts of one
to three tokens are counted when the store is built, and the rare ones left out: a look-up is a few
reads, and drafts are as good, as longer contexts are too rare in a store of this size to say more.
Long matches come from finished answers (finished_answers.py).

A store is a folder. datastore.json says what it was made of, and for which tokenizer; ngrams.bin
holds these arrays, one after the other, little-endian:

    keys [num_contexts] uint64: contexts, packed as in recycling.pack, bucket by bucket, ascending in each
    buckets [num_buckets + 1] uint32: where the contexts of each bucket begin; a context's is its key modulo num_buckets
    first [num_contexts + 1] uint32: where the next tokens of each context begin
    totals [num_contexts] uint32: how often the context occurred
    counts [num_pairs] uint32: how often each next token followed, of a context the most frequent first
    tokens [num_pairs] uint32, or uint16 if that suffices for the vocabulary
"""  # noqa: E501

import json
import mmap
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from smartspec.drafters.recycling import LONGEST_FIRST

FORMAT = 1
HEADER, NGRAMS = "datastore.json", "ngrams.bin"
MOST_SCANNED = (
    # contexts of a bucket, of which there are two on average; in larger ones the place is found by
    # halves
    16
)
REBUILD = "build it again with `smartspec datastore build`"


@dataclass(frozen=True, kw_only=True)
class DatastoreHeader:
    """The content of datastore.json."""

    format: int = FORMAT
    model: str
    tokenizer: str  # its digest
    vocab_size: int
    # num_texts, num_tokens: that were counted
    num_texts: int
    num_tokens: int
    least_count: int  # next tokens that followed a context less often are left out
    num_contexts: int
    num_buckets: int
    num_pairs: int
    sources: tuple[str, ...] = ()  # files and folders of the texts

    @property
    def arrays(self) -> "dict[str, tuple[Literal['Q', 'I', 'H'], int]]":
        """The arrays of ngrams.bin in their order: type, as in struct and numpy, and number of
        entries."""
        return {
            "keys": ("Q", self.num_contexts),
            "buckets": ("I", self.num_buckets + 1),
            "first": ("I", self.num_contexts + 1),
            "totals": ("I", self.num_contexts),
            "counts": ("I", self.num_pairs),
            "tokens": ("H" if self.vocab_size <= 2**16 else "I", self.num_pairs),
        }


WIDTHS = {"Q": 8, "I": 4, "H": 2}  # bytes


class Found(NamedTuple):
    """The next tokens of a context of num_tokens tokens, the most frequent first, each with its
    count over the context's count and one: of what was seen seldom, little is known. Nothing is
    known where num_tokens is 0."""

    tokens: Sequence[int]
    shares: Sequence[float]
    num_tokens: int


NOTHING = Found((), (), 0)


class Datastore:
    """A store that is open for reading. Raises ValueError naming the folder and the remedy where it
    is none, OSError where it cannot be read. Processes share its memory, which the system takes
    back when it needs some."""

    def __init__(self, folder: Path):
        self.folder, self.header = folder, read_header(folder)
        arrays = _mapped(folder / NGRAMS, self.header)
        self._keys, self._buckets, self._first, *rest = arrays.values()
        self._totals, self._counts, self._tokens = rest
        self._num_buckets = self.header.num_buckets

    def lookup(self, context: int) -> Found:
        """The tokens that followed the longest end of a packed context that is known."""
        place, num_tokens = self._find(context)
        if not num_tokens:
            return NOTHING
        pairs = slice(self._first[place], self._first[place + 1])
        total = self._totals[place]
        shares = [count / (total + 1) for count in self._counts[pairs]]
        return Found(self._tokens[pairs].tolist(), shares, num_tokens)

    def likeliest(self, context: int) -> tuple[int, float] | None:
        """The first token of lookup and its share, in half the time; None where there is none."""
        place, num_tokens = self._find(context)
        if not num_tokens:
            return None
        first = self._first[place]
        return self._tokens[first], self._counts[first] / (self._totals[place] + 1)

    def _find(self, context: int) -> tuple[int, int]:
        """The place of the longest end of a packed context that is known, and its number of tokens,
        0 where none is."""
        keys, buckets = self._keys, self._buckets
        for num_tokens, mask in LONGEST_FIRST:
            key = context & mask
            bucket = key % self._num_buckets
            begin, end = buckets[bucket], buckets[bucket + 1]
            if end - begin > MOST_SCANNED:
                begin = bisect_left(keys, key, begin, end)
                end = min(begin + 1, end)
            for place in range(begin, end):
                if keys[place] == key:
                    return place, num_tokens
        return 0, 0

    def check_for(self, tokenizer: str, vocab_size: int, model: str) -> None:
        """ValueError if it was built for another tokenizer, whose digest that is, or vocabulary
        than the model's."""
        header = self.header
        if (header.tokenizer, header.vocab_size) != (tokenizer, vocab_size):
            raise ValueError(
                f"datastore {str(self.folder)!r} was built for the tokenizer of {header.model!r} "
                f"({header.vocab_size} tokens); that of {model!r} ({vocab_size} tokens) is another "
                f"one: build one with `smartspec datastore build FILES --model {model} --out "
                "FOLDER`, or leave it out with --datastore none"
            )


def read_header(folder: Path) -> DatastoreHeader:
    """Read what a store is made of. Raises as Datastore."""
    path = folder / HEADER
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{str(folder)!r} is no datastore, there is no {HEADER}: `smartspec datastore build` "
            "makes one"
        ) from None
    except ValueError:
        raise ValueError(f"{path} is damaged: {REBUILD}") from None
    if isinstance(said, dict) and said.get("format") != FORMAT:
        raise ValueError(
            f"datastore {str(folder)!r} has format {said.get('format')!r}, this version of "
            f"smartspec reads {FORMAT}: {REBUILD}"
        )
    return _checked(path, said)


def _checked(path: Path, said: object) -> DatastoreHeader:
    wanted = {field.name: field.type for field in fields(DatastoreHeader)}
    if not isinstance(said, dict) or said.keys() != wanted.keys():
        raise ValueError(f"{path} is damaged, its names are not those of a datastore: {REBUILD}")
    for name, kind in wanted.items():
        if kind is int and not (type(said[name]) is int and said[name] > 0):
            raise ValueError(f"{path} is damaged ({name} is {said[name]!r}): {REBUILD}")
    return DatastoreHeader(**said | {"sources": tuple(map(str, said["sources"]))})


def _mapped(path: Path, header: DatastoreHeader) -> dict[str, memoryview]:
    expected = sum(WIDTHS[kind] * num for kind, num in header.arrays.values())
    try:
        with path.open("rb") as file:
            found = path.stat().st_size
            if found != expected:
                raise ValueError(
                    f"{path} has {found:,} bytes instead of {expected:,}, it was cut short or "
                    f"changed: {REBUILD}"
                )
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise ValueError(f"there is no {path}: {REBUILD}") from None
    arrays, at = {}, 0
    for name, (kind, num) in header.arrays.items():
        arrays[name] = memory[at : at + WIDTHS[kind] * num].cast(kind)
        at += WIDTHS[kind] * num
    if not _is_sound(header, **{name: np.asarray(array) for name, array in arrays.items()}):
        raise ValueError(f"{path} is damaged: {REBUILD}")
    return arrays


def _is_sound(
    header: DatastoreHeader, *, buckets, first, totals, tokens, **others: np.ndarray
) -> bool:
    """True if places and tokens are such as there are, so that no look-up fails; a millisecond for
    four megabytes."""
    ends = ((buckets, header.num_contexts), (first, header.num_pairs))
    are_places = all(
        array[0] == 0 and array[-1] == end and (array[1:] >= array[:-1]).all()
        for array, end in ends
    )
    return bool(are_places and totals.min() > 0 and tokens.max() < header.vocab_size)
