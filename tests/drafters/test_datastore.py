"""Datastores: counts against a dictionary, and files that are not what they should be."""

import errno
import json
import os
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_arrays import as_text

from smartspec.drafters import datastore_build
from smartspec.drafters.datastore import HEADER, NGRAMS, NOTHING, WIDTHS, Datastore
from smartspec.drafters.datastore_build import MOST_NEXT, NgramCounts, write_datastore
from smartspec.drafters.datastore_drafter import STRENGTHS, DatastoreDrafter
from smartspec.drafters.recycling import MAX_CONTEXT, pack

ABOUT = {"model": "tiny", "tokenizer": "digest", "vocab_size": 100}
texts = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 4)), max_size=6
)


def counted(some) -> NgramCounts:
    counts = NgramCounts()
    for token_ids, start in some:
        counts.add(as_text(token_ids), min(start, len(token_ids)))
    return counts


def store_of(folder: Path, *token_ids, **options) -> Datastore:
    write_datastore(folder, counted([(each, 0) for each in token_ids]), **ABOUT | options)
    return Datastore(folder)


def brute(some, least_count: int) -> dict[tuple[int, ...], tuple[list[tuple[int, int]], int]]:
    """By context: its frequent next tokens with counts, and how often it was followed by
    anything."""
    found: dict[tuple[int, ...], Counter] = defaultdict(Counter)
    for token_ids, start in some:
        for place in range(min(start, len(token_ids)), len(token_ids)):
            for length in range(1, min(MAX_CONTEXT, place) + 1):
                found[tuple(token_ids[place - length : place])][token_ids[place]] += 1
    frequent = {
        context: sorted([(-n, token) for token, n in following.items() if n >= least_count])[
            :MOST_NEXT
        ]
        for context, following in found.items()
    }
    return {
        context: (pairs, found[context].total()) for context, pairs in frequent.items() if pairs
    }


@given(some=texts, least_count=st.integers(1, 3), chunk=st.sampled_from([5, 1 << 20]))
def test_agrees_with_a_dictionary_of_counts(some, least_count, chunk):
    expected = brute(some, least_count)
    with tempfile.TemporaryDirectory() as parent, pytest.MonkeyPatch.context() as patch:
        patch.setattr(datastore_build, "CHUNK_TOKENS", chunk)
        folder = Path(parent) / "store"
        if not expected:
            with pytest.raises(ValueError, match="give more text"):
                write_datastore(folder, counted(some), least_count, **ABOUT)
            return
        header = write_datastore(folder, counted(some), least_count, **ABOUT)
        assert header.num_contexts == len(expected)
        assert header.num_pairs == sum(len(pairs) for pairs, _ in expected.values())
        store = Datastore(folder)
    contexts = [tuple(context) for context in np.ndindex(4, 4, 4)]
    for context in contexts:
        known = next((context[i:] for i in range(MAX_CONTEXT) if context[i:] in expected), ())
        found = store.lookup(pack(as_text(context)))
        assert found.num_tokens == len(known)
        if known:
            pairs, total = expected[known]
            assert found.tokens == [token for _, token in pairs]
            assert found.shares == [-n / (total + 1) for n, _ in pairs]
        likeliest = store.likeliest(pack(as_text(context)))
        assert likeliest == ((found.tokens[0], found.shares[0]) if known else None)


@pytest.mark.parametrize(("vocab_size", "width"), [(2**16, 2), (2**16 + 1, 4)])
def test_tokens_take_as_many_bytes_as_they_need(tmp_path, vocab_size, width):
    store = store_of(tmp_path / "store", [5, vocab_size - 1] * 9, vocab_size=vocab_size)
    assert store.lookup(pack(as_text([5]))).tokens == [vocab_size - 1]
    header = store.header
    others = 8 * header.num_contexts + 4 * (
        header.num_buckets + 2 * header.num_contexts + header.num_pairs + 2
    )
    assert (tmp_path / "store" / NGRAMS).stat().st_size == others + width * header.num_pairs


class CountedReads:
    """Of an array."""

    def __init__(self, array):
        self._array, self.num_reads = array, 0

    def __len__(self):
        return len(self._array)

    def __getitem__(self, place):
        self.num_reads += 1
        return self._array[place]


def test_a_look_up_reads_few_contexts_however_many_share_a_bucket(tmp_path):
    store = store_of(tmp_path / "store", [token for last in range(98) for token in (last, 99)] * 3)
    everything = {last: store.lookup(pack(as_text([last]))) for last in range(98)}
    order = np.argsort(np.asarray(store._keys))
    first = np.asarray(store._first).astype(np.int64)
    pairs = np.concatenate([np.arange(first[place], first[place + 1]) for place in order])
    sizes = np.diff(first)[order]
    memory = {
        name: np.asarray(getattr(store, f"_{name}"))
        for name in ("keys", "totals", "counts", "tokens")
    }
    # The same contexts in one bucket.
    store._keys = CountedReads(memoryview(memory["keys"][order]))
    store._totals, store._first = (
        memoryview(memory["totals"][order]),
        memoryview(np.append(0, np.cumsum(sizes))),
    )
    store._counts, store._tokens = (
        memoryview(memory["counts"][pairs]),
        memoryview(memory["tokens"][pairs]),
    )
    store._buckets, store._num_buckets = memoryview(np.array([0, len(order)])), 1
    for last, found in everything.items():
        store._keys.num_reads = 0
        assert store.lookup(pack(as_text([last]))) == found != NOTHING
        assert store._keys.num_reads <= MAX_CONTEXT * (int(np.log2(len(order))) + 2)


def test_nothing_is_known_after_new_tokens(tmp_path):
    assert store_of(tmp_path / "store", [1, 2] * 9).lookup(pack(as_text([7, 8, 9]))) is NOTHING


def test_a_chain_follows_the_likeliest_tokens(tmp_path):
    store = store_of(tmp_path / "store", [1, 2, 3, 4, 5] * 4, [1, 2, 9] * 3)
    draft = DatastoreDrafter(max_draft_tokens=3, datastore=store).propose(as_text([7, 1, 2]))
    assert draft.is_chain and draft.token_ids.tolist() == [3, 4, 5]
    assert 1 <= draft.match_length <= STRENGTHS
    assert not len(DatastoreDrafter(max_draft_tokens=3, datastore=store).propose(as_text([7])))
    assert not len(DatastoreDrafter(max_draft_tokens=3).propose(as_text([7, 1, 2])))


def damaged(folder: Path, change) -> None:
    said = json.loads((folder / HEADER).read_text())
    change(said)
    (folder / HEADER).write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda f: (f / HEADER).unlink(),
            "is no datastore, there is no datastore.json: `smartspec datastore build`",
        ),
        (lambda f: (f / HEADER).write_text("{"), "datastore.json is damaged: build it again"),
        (
            lambda f: (f / HEADER).write_text("[]"),
            "datastore.json is damaged, its names .* build it again",
        ),
        (
            lambda f: damaged(f, lambda said: said.update(format=2)),
            "has format 2, this version of smartspec reads 1",
        ),
        (
            lambda f: damaged(f, lambda said: said.pop("model")),
            "datastore.json is damaged, its names",
        ),
        (
            lambda f: damaged(f, lambda said: said.update(num_pairs=-1)),
            r"is damaged \(num_pairs is -1\)",
        ),
        (
            lambda f: damaged(f, lambda said: said.update(num_pairs="9")),
            r"is damaged \(num_pairs is '9'\)",
        ),
        (
            lambda f: damaged(f, lambda said: said.update(num_pairs=10**6)),
            "bytes instead of .* cut short or changed",
        ),
        (
            lambda f: os.truncate(f / NGRAMS, 10),
            "ngrams.bin has 10 bytes instead of .* cut short or changed: build it",
        ),
        (lambda f: os.truncate(f / NGRAMS, 0), "ngrams.bin has 0 bytes instead"),
        (lambda f: (f / NGRAMS).unlink(), "there is no .*ngrams.bin: build it again"),
    ],
)
def test_what_is_no_whole_store_is_refused_with_the_remedy(tmp_path, harm, message):
    store_of(tmp_path / "store", [1, 2] * 9)
    harm(tmp_path / "store")
    with pytest.raises(ValueError, match=message):
        Datastore(tmp_path / "store")


@pytest.mark.parametrize("array", ["buckets", "first", "totals", "tokens"])
def test_a_store_of_impossible_numbers_is_refused(tmp_path, array):
    """Places that point outside would make look-ups fail, tokens beyond the vocabulary the target's
    pass."""
    store_of(tmp_path / "store", [1, 2] * 9)
    content = bytearray((tmp_path / "store" / NGRAMS).read_bytes())
    header = Datastore(tmp_path / "store").header
    names = list(header.arrays)
    at = sum(WIDTHS[kind] * num for kind, num in list(header.arrays.values())[: names.index(array)])
    content[at : at + 2] = bytes(2) if array == "totals" else b"\xff\xff"
    (tmp_path / "store" / NGRAMS).write_bytes(content)
    with pytest.raises(ValueError, match=r"ngrams\.bin is damaged: build it again"):
        Datastore(tmp_path / "store")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_store_that_cannot_be_read_is_named(tmp_path):
    store_of(tmp_path / "store", [1, 2] * 9)
    (tmp_path / "store" / NGRAMS).chmod(0)
    with pytest.raises(PermissionError, match=r"ngrams\.bin"):
        Datastore(tmp_path / "store")


@pytest.mark.parametrize(("tokenizer", "vocab_size"), [("other", 100), ("digest", 101)])
def test_a_store_for_another_tokenizer_is_refused(tmp_path, tokenizer, vocab_size):
    store = store_of(tmp_path / "store", [1, 2] * 9)
    store.check_for("digest", 100, "tiny")
    with pytest.raises(
        ValueError, match=r"built for the tokenizer of 'tiny' .* that of 'big' .* --model big"
    ):
        store.check_for(tokenizer, vocab_size, "big")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            r"cannot write .*store \(No space left on device\): make room or name another",
        ),
        (KeyboardInterrupt(), None),
    ],
)
def test_a_full_disk_or_an_interruption_leaves_nothing(tmp_path, monkeypatch, harm, message):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=harm))
    with pytest.raises(type(harm), match=message):
        store_of(tmp_path / "store", [1, 2] * 9)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_overwritten(tmp_path):
    with pytest.raises(ValueError, match="exists: name a new folder, or delete it"):
        store_of(tmp_path, [1, 2] * 9)
