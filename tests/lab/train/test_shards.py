"""Shards on disk: texts keep their signals, whatever is lost beside them, and damage is refused by
name."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from lab.train.batches import epoch
from lab.train.shards import read_rows, shard_paths, write_shard
from lab.train.signals import Signals, read_signals, signals_of, signals_path, write_signals
from smartspec.texts.shards import TokenRow, read_shard, tokenizer_of


def rows(number: int) -> list[TokenRow]:
    return [
        TokenRow(np.full(10, number, dtype=np.int32), 4),
        TokenRow(np.arange(7, dtype=np.int32) + number, 2),
    ]


def signals(number: int) -> list[Signals]:
    return [
        Signals(
            np.full((n, 3), number, np.float16),
            np.full((k, 20), number, np.int32),
            np.full((k, 20), 0.05, "f2"),
        )
        for n, k in ((9, 6), (6, 5))
    ]


@pytest.fixture
def folder(tmp_path) -> Path:
    """Four shards of equal lengths, each with signals that hold its number."""
    for number in range(4):
        write_signals(signals_path(tmp_path, number), signals(number), rows(number))
        write_shard(tmp_path, rows(number))
    return tmp_path


def pairs(folder: Path) -> list[tuple[int, int]]:
    found = []
    for path in shard_paths(folder):
        text = read_shard(path)
        found.append(
            (int(text[0].token_ids[0]), int(read_signals(signals_of(path), text)[0].features[0, 0]))
        )
    return found


@pytest.mark.parametrize("deleted", [0, 1, 3])
def test_a_deleted_shard_takes_nothing_else_with_it(folder, deleted):
    shard_paths(folder)[deleted].unlink()
    kept = [n for n in range(4) if n != deleted]
    assert pairs(folder) == [(n, n) for n in kept]
    for number in (8, 9):
        before = {path: path.read_bytes() for path in shard_paths(folder)}
        write_signals(signals_path(folder, len(shard_paths(folder))), signals(number), rows(number))
        path = write_shard(folder, rows(number))
        assert path not in before and int(path.stem) == 1 + max(int(other.stem) for other in before)
        assert {path: path.read_bytes() for path in before} == before
    assert pairs(folder) == [(n, n) for n in (*kept, 8, 9)]


def test_numbers_beyond_five_digits_stay_in_order(tmp_path):
    (tmp_path / "tokens").mkdir()
    for name in ("99999", "100000", "7", "copy-of-7", "8.old"):
        (tmp_path / "tokens" / f"{name}.npz").touch()
    assert [path.stem for path in shard_paths(tmp_path)] == ["7", "99999", "100000"]
    assert write_shard(tmp_path, rows(1)).stem == "100001"


def test_signals_of_another_shard_of_the_same_lengths_are_refused(folder):
    first, second = map(signals_of, shard_paths(folder)[:2])
    shutil.copy(first, second)
    with pytest.raises(
        ValueError, match=r"signals/00001\.npz belongs to other training rows: delete it"
    ):
        pairs(folder)
    with pytest.raises(ValueError, match=r"signals/00001\.npz belongs to other training rows"):
        list(epoch(folder, 4, np.arange(32), seed=0, skip=0))


def test_older_signals_say_no_more_than_lengths_and_stay_readable(folder):
    for number, path in enumerate(shard_paths(folder)):
        write_signals(signals_of(path), signals(number))
    assert pairs(folder) == [(n, n) for n in range(4)]
    with pytest.raises(ValueError, match="belongs to other training rows"):
        read_signals(signals_path(folder, 0), rows(0)[:1])


@pytest.mark.parametrize("part", ["tokens", "signals"])
def test_damage_is_named_or_does_no_harm(folder, part):
    """Any byte, any cut: either the file is refused by name, or it reads as before."""
    path, expected = folder / part / "00002.npz", pairs(folder)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [whole[:cut] for cut in rng.integers(0, len(whole), 40).tolist()] + [
        b"",
        b"damaged",
        b"\x93NUMPY",
        whole * 2,
    ]
    for place, bit in zip(
        rng.integers(0, len(whole), 200).tolist(), rng.integers(0, 8, 200).tolist(), strict=True
    ):
        damaged.append(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
    num_refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            assert pairs(folder) == expected
        except ValueError as error:
            num_refused += 1
            assert f"{part}/00002.npz" in str(error) and "delete it" in str(error)
    assert num_refused > 100


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"token_ids": [1, 2, -3]}, "do not add up"),
        ({"token_ids": [1.0, 2.0, np.nan]}, "do not add up"),
        ({"lengths": [2]}, "do not add up"),
        ({"lengths": [3, 0]}, "do not add up"),
        ({"lengths": []}, "do not add up"),
        ({"answer_starts": [3]}, "do not add up"),
        ({"token_ids": None}, "holds something else"),
    ],
)
def test_rows_that_are_none_are_refused(tmp_path, columns, problem):
    whole = {"token_ids": [1, 2, 3], "lengths": [3], "answer_starts": [1]} | columns
    np.savez(
        tmp_path / "1.npz",
        **{name: np.array(values) for name, values in whole.items() if values is not None},
    )
    with pytest.raises(
        ValueError, match=rf"1\.npz is not a shard of training rows \(.*{problem}\): delete it"
    ):
        read_shard(tmp_path / "1.npz")


def test_what_is_deleted_while_it_is_read_is_named(folder):
    part = epoch(folder, 4, np.arange(32), seed=0, skip=0)
    path = shard_paths(folder)[2]
    path.unlink()
    signals_of(path).unlink()
    assert len(list(part)) > 0  # it had not begun: the others are read
    with pytest.raises(ValueError, match=r"00002\.npz has been deleted: give the command again"):
        read_shard(path)
    with pytest.raises(
        ValueError, match=r"00002\.npz is missing: give the command again, it is computed first"
    ):
        read_signals(signals_of(path), rows(2))


def test_signals_that_are_not_finite_are_refused(folder):
    wrong = signals(1)
    wrong[0].features[3, 1] = np.inf
    write_signals(signals_path(folder, 1), wrong, rows(1))
    with pytest.raises(
        ValueError, match=r"signals/00001\.npz holds values that are not finite: delete it"
    ):
        pairs(folder)


def test_texts_of_this_repository_are_readable():
    data = Path(__file__).parents[3] / "training" / "smollm2-135m-instruct"
    paths = shard_paths(data)
    assert [int(path.stem) for path in paths] == list(range(len(paths)))
    assert all(tokenizer_of(path) == "" or len(tokenizer_of(path)) == 64 for path in paths)
    assert sum(row.num_answer_tokens for row in read_rows(data)) == 1_313_769
