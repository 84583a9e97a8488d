"""Runs on folders that change, are full or are in use."""

import shutil
from pathlib import Path

import pytest
from tiny_training import generate, train

from lab.train.files import alone
from lab.train.shards import shard_paths
from smartspec.engine.drafting.head.kinds import is_head


def test_training_goes_on_without_a_shard_that_was_deleted(target, tmp_path):
    data, out = tmp_path / "texts", tmp_path / "head"
    for num_tokens in (60, 120, 180):  # a shard each
        generate(target, data, num_tokens)
    train(target, data, out, num_tokens=100)
    shard_paths(data)[-1].unlink()
    train(target, data, out, num_tokens=300)
    assert is_head(str(out))


def test_a_curve_that_finds_no_room_stays_as_it_was(target, texts, tmp_path, monkeypatch):
    train(target, texts, tmp_path, num_tokens=200)
    before = (tmp_path / "curve.jsonl").read_bytes()
    replace_file = Path.replace

    def no_room(self, other):
        if self.name.startswith("curve"):
            raise OSError(28, "No space left on device")
        return replace_file(self, other)

    monkeypatch.setattr(Path, "replace", no_room)
    with pytest.raises(OSError, match=r"cannot write .*curve\.jsonl .*No space left.*make room"):
        train(target, texts, tmp_path)
    assert (tmp_path / "curve.jsonl").read_bytes() == before and not list(
        tmp_path.glob("*.partial")
    )


def test_two_runs_do_not_write_to_one_folder(target, texts, tmp_path):
    data, out = shutil.copytree(texts, tmp_path / "texts"), tmp_path / "head"
    said = r"another run writes to .*texts: wait until it has ended"
    with alone(data), pytest.raises(ValueError, match=said):
        generate(target, data, 400)
    with alone(out), pytest.raises(ValueError, match=r"another run writes to .*head"):
        train(target, data, out)
    with alone(data):  # a training may run beside a generation
        train(target, data, out)
    with alone(data), alone(out):
        pass
    assert is_head(str(out))
