"""Training that goes on from an earlier head: it begins with what that one knows, and refuses what
it cannot keep."""

import shutil
from pathlib import Path

import pytest
import torch
from json_files import change_json
from safetensors.torch import load_file, save_file
from tiny_training import curve, train
from typer.testing import CliRunner

from lab.train.__main__ import app


@pytest.fixture(scope="module")
def earlier(target, texts, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    return train(target, texts, folder, num_tokens=12_000, learning_rate=5e-2)


def test_it_begins_with_what_the_earlier_head_knows(target, texts, earlier, tmp_path):
    few, said = {"num_tokens": 300, "draft_vocab_size": 8}, list[str]()
    new = train(target, texts, tmp_path / "new", **few)
    on = train(target, texts, tmp_path / "on", say=said.append, from_head=str(earlier), **few)
    assert f"going on from {earlier}" in said
    assert curve(on)[-1]["loss"] < curve(new)[-1]["loss"]
    before, after = (load_file(folder / "model.safetensors") for folder in (earlier, on))
    assert torch.equal(before["d2t"], after["d2t"]), (
        "its vocabulary stays, whatever the settings say"
    )
    assert torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    assert not torch.equal(before["fc.weight"], after["fc.weight"])
    assert str(earlier) in (on / "README.md").read_text()


def test_interrupted_it_goes_on_where_it_ended(target, texts, earlier, tmp_path):
    said: list[str] = []
    for num_tokens in (300, 600):
        train(
            target,
            texts,
            tmp_path,
            say=said.append,
            num_tokens=num_tokens,
            from_head=str(earlier),
        )
    assert sum("going on after" in line for line in said) == 1
    assert [line["tokens"] >= 300 for line in curve(tmp_path)] == [True, True]


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
            {},
            r"first \(1, 3, 4\) layers have computed, the signals are those of \(2, 3, 3\)",
        ),
        (
            {},
            {"embed_tokens.weight": torch.zeros(32, 32)},
            "brings an embedding of its own, from which training cannot go on",
        ),
        ({}, {"lm_head.weight": None}, "has no output embedding of its own"),
        ({"speculators_model_type": "dflash"}, {}, "is a head of type 'dflash'"),
    ],
)
def test_a_head_that_could_not_be_kept_is_refused(
    target, texts, earlier, tmp_path, config, tensors, message
):
    other = shutil.copytree(earlier, tmp_path / "other")
    change_json(other / "config.json", config)
    tensors = load_file(other / "model.safetensors") | tensors
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, other / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        train(target, texts, tmp_path / "on", from_head=str(other))
    assert not (tmp_path / "on" / "config.json").exists()


def test_other_kinds_do_not_go_on(target, texts, earlier, tmp_path):
    with pytest.raises(ValueError, match="only --kind eagle3 goes on, not p-eagle"):
        train(target, texts, tmp_path / "on", kind="p-eagle", from_head=str(earlier))


def test_the_option_needs_a_training():
    with pytest.raises(ValueError, match="--from-head is where --out FOLDER goes on from"):
        arguments = ["model", "--data", "texts", "--generate", "5", "--from-head", "head"]
        CliRunner().invoke(app, arguments, catch_exceptions=False)
