"""Training that goes on from an earlier head: it begins with what that one knows, and refuses what
it cannot keep."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_training import SETTINGS, curve
from typer.testing import CliRunner

from lab.train import run
from lab.train.__main__ import app

LEARNED = replace(SETTINGS, num_tokens=12_000, learning_rate=5e-2)


@pytest.fixture(scope="module")
def earlier(target, texts, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    run.train_head(str(target), texts, folder, LEARNED, lambda line: None)
    return folder


def test_it_begins_with_what_the_earlier_head_knows(target, texts, earlier, tmp_path):
    few = replace(SETTINGS, num_tokens=300, draft_vocab_size=8)
    run.train_head(str(target), texts, tmp_path / "new", few, lambda line: None)
    said: list[str] = []
    settings = replace(few, from_head=str(earlier))
    run.train_head(str(target), texts, tmp_path / "on", settings, said.append)
    assert f"going on from {earlier}" in said
    assert curve(tmp_path / "on")[-1]["loss"] < curve(tmp_path / "new")[-1]["loss"]
    before, after = (
        load_file(folder / "model.safetensors") for folder in (earlier, tmp_path / "on")
    )
    assert torch.equal(before["d2t"], after["d2t"]), (
        "its vocabulary stays, whatever the settings say"
    )
    assert torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    assert not torch.equal(before["fc.weight"], after["fc.weight"])
    assert str(earlier) in (tmp_path / "on" / "README.md").read_text()


def test_interrupted_it_goes_on_where_it_ended(target, texts, earlier, tmp_path):
    settings = replace(SETTINGS, num_tokens=300, from_head=str(earlier))
    run.train_head(str(target), texts, tmp_path / "on", settings, lambda line: None)
    said: list[str] = []
    run.train_head(
        str(target), texts, tmp_path / "on", replace(settings, num_tokens=600), said.append
    )
    assert any("going on after" in line for line in said)
    assert [line["tokens"] >= 300 for line in curve(tmp_path / "on")] == [True, True]


def with_other_taps(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4]
    }
    (folder / "config.json").write_text(json.dumps(config))


def with_an_embedding(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"embed_tokens.weight": torch.zeros(32, 32)}, folder / "model.safetensors")


def without_output_embedding(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight")
    save_file(tensors, folder / "model.safetensors")


def of_another_kind(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"speculators_model_type": "dflash"}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            with_other_taps,
            r"first \(1, 3, 4\) layers have computed, the signals are those of \(2, 3, 3\)",
        ),
        (with_an_embedding, "brings an embedding of its own, from which training cannot go on"),
        (without_output_embedding, "has no output embedding of its own"),
        (of_another_kind, "is a head of type 'dflash'"),
    ],
)
def test_a_head_that_could_not_be_kept_is_refused(
    target, texts, earlier, tmp_path, change, message
):
    other = shutil.copytree(earlier, tmp_path / "other")
    change(other)
    settings = replace(SETTINGS, from_head=str(other))
    with pytest.raises(ValueError, match=message):
        run.train_head(str(target), texts, tmp_path / "on", settings, lambda line: None)
    assert not (tmp_path / "on" / "config.json").exists()


def test_other_kinds_do_not_go_on(target, texts, earlier, tmp_path):
    settings = replace(SETTINGS, kind="p-eagle", from_head=str(earlier))
    with pytest.raises(ValueError, match="only --kind eagle3 goes on, not p-eagle"):
        run.train_head(str(target), texts, tmp_path / "on", settings, lambda line: None)


def test_the_option_needs_a_training():
    with pytest.raises(ValueError, match="--from-head is where --out FOLDER goes on from"):
        arguments = ["model", "--data", "texts", "--generate", "5", "--from-head", "head"]
        CliRunner().invoke(app, arguments, catch_exceptions=False)
