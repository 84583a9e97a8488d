"""A head from nothing, on a tiny model: texts by the model itself, training, the checkpoint,
drafting with it."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_training import SETTINGS, curve, generate, quiet, train
from typer.testing import CliRunner

from lab.heads.write import write_files
from lab.train import run
from lab.train.__main__ import app
from lab.train.batches import epoch, held_out_rows
from lab.train.generate import GenerationLimits, without_loop
from lab.train.prompts import chat_format
from lab.train.shards import read_rows, shard_paths, write_shard
from lab.train.signals import read_signals, signals_path
from smartspec.engine.drafting.head.checkpoint.eagle3 import read_head
from smartspec.engine.drafting.head.kinds import is_head, load_head
from smartspec.engine.models.load import load_model
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.texts.shards import TokenRow, read_shard

LONG = replace(SETTINGS, num_tokens=20_000, learning_rate=5e-2)


@pytest.fixture(scope="module")
def trained(target, texts, tmp_path_factory) -> Path:
    return train(target, texts, tmp_path_factory.mktemp("head"), LONG)


@pytest.fixture(scope="module")
def loaded(target) -> LoadedModel:
    return load_model(str(target))


def test_what_is_recorded_while_generating_is_what_a_pass_of_its_own_computes(
    target, texts, tmp_path
):
    (tmp_path / "tokens").mkdir()
    for path in shard_paths(texts):
        (tmp_path / "tokens" / path.name).write_bytes(path.read_bytes())
    run.record_missing(str(target), tmp_path, "eagle3", quiet)
    for number, path in enumerate(shard_paths(texts)):
        rows = read_shard(path)
        pairs = zip(
            *(read_signals(signals_path(each, number), rows) for each in (texts, tmp_path)),
            strict=True,
        )
        for recorded, computed in pairs:
            np.testing.assert_allclose(recorded.features, computed.features, atol=2e-2, rtol=2e-2)
            np.testing.assert_allclose(recorded.top_probs, computed.top_probs, atol=2e-3)


def test_generation_goes_on_where_it_ended_with_other_texts(target, texts, tmp_path):
    folder = shutil.copytree(texts, tmp_path / "texts")
    before = [row.token_ids.tolist() for row in read_rows(folder)]
    generate(target, folder, 400)
    rows = [row.token_ids.tolist() for row in read_rows(folder)]
    assert rows[: len(before)] == before and len(rows) > len(before)
    assert rows[len(before) :][0] not in before
    assert all(0 < row.answer_start < len(row.token_ids) for row in read_rows(folder))


def test_prompts_of_ones_own_are_answered_once_each(target, loaded, tmp_path):
    said, words = [], [f"w{n} w{n + 1}" for n in range(10, 18)]
    lines = [
        json.dumps({"id": n, "task": "chat", "prompt": word, "turns": [word]})
        for n, word in enumerate(words)
    ]
    lines.append(json.dumps({"prompt": "w9 " * 200}))
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "some.jsonl").write_text("\n".join(lines))
    data = tmp_path / "texts"
    chat = chat_format(loaded.tokenizer)

    def num_answers() -> list[int]:
        prompts = [tuple(row.token_ids[: row.answer_start].tolist()) for row in read_rows(data)]
        return [prompts.count(tuple(chat.encode(word))) for word in words]

    generate(target, data, 150, tmp_path / "prompts", say=said.append)
    assert "9 prompts, 1 left out as longer than" in said[1] and said[1].endswith(
        "0 answered before"
    )
    num_answered, num_said = sum(num_answers()), len(said)
    assert num_answered > 0 and max(num_answers()) == 1
    generate(target, data, 400, tmp_path / "prompts", say=said.append)
    assert said[num_said + 1].endswith(f"{num_answered} answered before")
    assert max(num_answers()) == 1
    generate(target, data, 1, say=said.append)
    assert "answer tokens already" in said[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--data", "texts"],
            "nothing to do: give --generate TOKENS, --from-log FOLDER, --out FOLDER, --acceptance "
            "FOLDER or",
        ),
        (
            ["--data", "texts", "--out", "head", "--prompts", "p.jsonl"],
            "--prompts are answered by --generate TOKENS",
        ),
    ],
)
def test_commands_that_do_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(app, ["model", *options], catch_exceptions=False)


def test_training_teaches_and_what_it_writes_drafts(target, loaded, trained):
    # what knowing nothing of its vocabulary gives
    assert curve(trained)[-1]["loss"] < 0.9 * np.log(16)
    assert is_head(str(trained)) and not is_head(str(target))
    head, embedding = read_head(trained, loaded)
    assert embedding is None and len(head.target_ids) == 16
    assert "Held-out" in (trained / "README.md").read_text()


def test_rows_that_are_held_out_are_not_learned_from(target, texts):
    ids, num_shards = np.arange(32), len(shard_paths(texts))
    held_out = {row.token_ids.tobytes() for row, _ in held_out_rows(texts, 1000)}
    learned = {
        tokens[: int(length)].numpy().astype(np.int32).tobytes()
        for batch in epoch(texts, num_shards, ids, seed=0, skip=0)
        for tokens, length in zip(batch.token_ids, batch.lengths, strict=True)
    }
    assert (
        held_out
        and learned
        and held_out | learned == {row.token_ids.tobytes() for row in read_rows(texts)}
    )
    assert not held_out & learned
    assert len(held_out_rows(texts, 1)) == 1


@pytest.mark.parametrize("kind", ["p-eagle", "medusa", "redrafter"])
def test_heads_of_other_kinds_are_trained(target, loaded, texts, tmp_path, kind):
    """Some read other layers: their signals are computed, and those of EAGLE-3 refused."""
    settings, data = replace(LONG, kind=kind), texts
    if kind != "p-eagle":
        with pytest.raises(
            ValueError,
            match=rf"holds 96 values a token, a head of kind {kind} reads 32: copy .*/tokens",
        ):
            train(target, texts, tmp_path / "head", settings)
        data = tmp_path / "texts"
        shutil.copytree(texts / "tokens", data / "tokens")
    for name, num_tokens in (("start", 1), ("head", LONG.num_tokens)):
        train(target, data, tmp_path / name, settings, num_tokens=num_tokens)
    loss = {name: curve(tmp_path / name)[-1]["loss"] for name in ("start", "head")}
    # which is what knowing nothing of its vocabulary gives
    assert loss["head"] < min(0.9 * loss["start"], np.log(16))
    head, _ = load_head(tmp_path / "head", loaded)
    assert (
        len(head.target_ids) == 16
        and f"--kind {kind} " in (tmp_path / "head" / "README.md").read_text()
    )
    with pytest.raises(
        ValueError, match="no head of kind 'hydra': use one of eagle3, p-eagle, medusa, redrafter"
    ):
        train(target, data, tmp_path / "other", kind="hydra")


def test_interrupted_and_resumed_is_as_uninterrupted(target, texts, tmp_path, monkeypatch):
    settings, learn, calls = replace(LONG, num_tokens=2000), run.Training._learn, []

    def interrupted(self, batch):
        calls.append(1)
        if len(calls) == 4:
            self.keep(tmp_path / "b", quiet)
            raise KeyboardInterrupt
        learn(self, batch)

    train(target, texts, tmp_path / "a", settings)
    monkeypatch.setattr(run.Training, "_learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(target, texts, tmp_path / "b", settings)
    assert not is_head(str(tmp_path / "b"))
    monkeypatch.setattr(run.Training, "_learn", learn)
    train(target, texts, tmp_path / "b", settings)
    once, resumed = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(once[name], resumed[name]) for name in once)
    assert [line["tokens"] for line in curve(tmp_path / "b")][-1] == curve(tmp_path / "a")[-1][
        "tokens"
    ]


def test_data_that_cannot_be_learned_from_is_refused(target, tmp_path):
    with pytest.raises(ValueError, match="holds no training rows"):
        train(target, tmp_path, tmp_path / "out")
    for token_ids, message in (
        ([1, 2, 40], "a row of 3 tokens up to id 40, .* has 32 tokens and"),
        ([1] * 5000, "a row of 5000 tokens up to id 1, "),
    ):
        path = write_shard(tmp_path, [row(token_ids, 1)])
        with pytest.raises(ValueError, match=f"{message}.* generate texts with this model"):
            train(target, tmp_path, tmp_path / "out")
        path.unlink()
    assert not is_head(str(tmp_path / "out"))


def row(token_ids: list[int], answer_start: int) -> TokenRow:
    return TokenRow(np.array(token_ids, dtype=np.int32), answer_start)


def test_a_full_disk_costs_nothing_that_was_kept(target, texts, tmp_path, monkeypatch):
    out = train(target, texts, tmp_path / "head", num_tokens=500)
    kept = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(*arguments, **named):
        raise RuntimeError("PytorchStreamWriter failed writing file: No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(
        OSError,
        match=r"cannot write .*training\.pt .*No space left.* make room, then the same command",
    ):
        train(target, texts, out, num_tokens=900)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == kept

    def no_room(*arguments, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", no_room)
    with pytest.raises(OSError, match=r"cannot write .*00000\.npz .*No space left.* make room"):
        write_shard(tmp_path / "texts", [row([1, 2, 3], 1)])
    assert not list((tmp_path / "texts" / "tokens").iterdir())
    monkeypatch.setattr("lab.heads.write.save_file", no_room)
    with pytest.raises(OSError, match=r"cannot write a head to .*No space left.* make room"):
        write_files(tmp_path, {}, {})
    assert not (tmp_path / "config.json").exists()


def test_exported_rows_are_what_speculators_reads(target, texts, tmp_path):
    datasets = pytest.importorskip("datasets")
    run.export_data(str(target), texts, tmp_path / "export", quiet)
    exported, rows = datasets.load_from_disk(str(tmp_path / "export")), list(read_rows(texts))
    signals = read_signals(signals_path(texts, 0), read_shard(shard_paths(texts)[0]))
    assert len(exported) == len(rows)
    for index, (row, recorded) in enumerate(zip(rows, signals, strict=False)):
        assert exported[index]["input_ids"].tolist() == row.token_ids.tolist()
        assert int(exported[index]["loss_mask"].sum()) == row.num_answer_tokens
        assert exported[index]["seq_len"] == len(row.token_ids)
        arrays = load_file(tmp_path / "export" / "hidden_states" / f"hs_{index}.safetensors")
        # which is how it checks them
        assert torch.equal(arrays["token_ids"], exported[index]["input_ids"])
        assert arrays["hidden_states"].shape == (len(row.token_ids), 4, 32)
        # the last one is after the last layer
        taps = arrays["hidden_states"][:-1, :3].float().flatten(1)
        np.testing.assert_allclose(taps, recorded.features.astype(np.float32), rtol=2e-2, atol=0.1)
    with pytest.raises(ValueError, match="is not empty"):
        run.export_data(str(target), texts, tmp_path / "export", quiet)


def test_endless_repetition_is_cut():
    text = list(range(100, 140))
    assert without_loop(np.array(text)) == 40
    assert without_loop(np.array(text + [7] * 40)) == 41
    assert without_loop(np.array(text + [1, 2, 3, 4, 5] * 9)) == 45
    assert GenerationLimits().within(128).total <= 128
