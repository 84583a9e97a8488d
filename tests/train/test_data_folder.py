"""What lies on disk for training: texts keep their signals, whatever is lost beside them, and what cannot be learned
from is refused by name."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from saved_models import save_model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from smartspec.engine.drafting.eagle3 import default_taps
from smartspec.engine.drafting.head_kinds import is_head
from smartspec.engine.models.load import load_model
from smartspec.train import run
from smartspec.train.batches import epoch
from smartspec.train.files import alone
from smartspec.train.fit import Training, TrainingSettings
from smartspec.train.origin import check_tokenizer, tokenizer_digest
from smartspec.train.shards import TokenRow, read_rows, read_shard, shard_paths, tokenizer_of, write_shard
from smartspec.train.signals import Signals, read_signals, signals_of, signals_path, write_signals

TEMPLATE = "{% for m in messages %}w3 w{{ 4 if m.role == 'user' else 6 }} {{ m.content }} <end> {% endfor %}"
SETTINGS = TrainingSettings(num_tokens=600, draft_vocab_size=16, checkpoint_seconds=1e9)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    sizes = {"num_hidden_layers": 6, "max_position_embeddings": 128, "initializer_range": 0.4}
    folder = save_model(tmp_path_factory.mktemp("target"), eos_token_id=[2], **sizes)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE + "{% if add_generation_prompt %}w3 w6 {% endif %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def texts(target, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    run.generate_texts(str(target), folder, 150, (), 0, lambda line: None)
    return folder


def changed(target: Path, folder: Path, change) -> Path:
    """A copy of the target whose model is changed in place."""
    shutil.copytree(target, folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        change(model)
    model.save_pretrained(folder)
    return folder


def rows(number: int) -> list[TokenRow]:
    return [TokenRow(np.full(10, number, dtype=np.int32), 4), TokenRow(np.arange(7, dtype=np.int32) + number, 2)]


def signals(number: int) -> list[Signals]:
    return [
        Signals(np.full((n, 3), number, np.float16), np.full((k, 20), number, np.int32), np.full((k, 20), 0.05, "f2"))
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
        found.append((int(text[0].token_ids[0]), int(read_signals(signals_of(path), text)[0].features[0, 0])))
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
    with pytest.raises(ValueError, match=r"signals/00001\.npz belongs to other training rows: delete it"):
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
    for place, bit in zip(rng.integers(0, len(whole), 200).tolist(), rng.integers(0, 8, 200).tolist(), strict=True):
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
    np.savez(tmp_path / "1.npz", **{name: np.array(values) for name, values in whole.items() if values is not None})
    with pytest.raises(ValueError, match=rf"1\.npz is not a shard of training rows \(.*{problem}\): delete it"):
        read_shard(tmp_path / "1.npz")


def test_what_is_deleted_while_it_is_read_is_named(folder):
    part = epoch(folder, 4, np.arange(32), seed=0, skip=0)
    path = shard_paths(folder)[2]
    path.unlink()
    signals_of(path).unlink()
    assert len(list(part)) > 0  # it had not begun: the others are read
    with pytest.raises(ValueError, match=r"00002\.npz has been deleted: give the command again"):
        read_shard(path)
    with pytest.raises(ValueError, match=r"00002\.npz is missing: give the command again, it is computed first"):
        read_signals(signals_of(path), rows(2))


def test_training_goes_on_without_a_shard_that_was_deleted(target, tmp_path, monkeypatch):
    data, out = tmp_path / "texts", tmp_path / "head"
    for num_tokens in (60, 120, 180):  # a shard each
        run.generate_texts(str(target), data, num_tokens, (), 0, lambda line: None)
    run.train_head(str(target), data, out, replace(SETTINGS, num_tokens=100), lambda line: None)
    shard_paths(data)[-1].unlink()
    run.train_head(str(target), data, out, replace(SETTINGS, num_tokens=300), lambda line: None)
    assert is_head(str(out))


@pytest.mark.parametrize("size", [1.0, 3e5])
def test_features_are_what_transformers_computes_however_large(target, tmp_path, size):
    """Activations beyond 65,504 do not fit into float16."""
    big = changed(target, tmp_path / "big", lambda model: model.model.layers[2].mlp.down_proj.weight.mul_(size))
    data = tmp_path / "texts"
    run.generate_texts(str(big), data, 100, (), 0, lambda line: None)
    model, text = AutoModelForCausalLM.from_pretrained(big), read_shard(shard_paths(data)[0])
    recorded = read_signals(signals_path(data, 0), text)
    assert (np.abs(recorded[0].features).max() > 65504) == (recorded[0].features.dtype == np.float32) == (size > 1)
    for row, each in zip(text[:5], recorded, strict=False):
        with torch.inference_mode():
            hidden = model(torch.from_numpy(row.token_ids[None, :-1].astype(np.int64)), output_hidden_states=True)
        expected = torch.cat([hidden.hidden_states[tap][0] for tap in default_taps(6)], dim=-1).numpy()
        np.testing.assert_allclose(each.features, expected, rtol=2e-2, atol=2e-3 * np.abs(expected).max())
    run.train_head(str(big), data, tmp_path / "head", SETTINGS, lambda line: None)
    state = torch.load(tmp_path / "head" / "training.pt", weights_only=True)
    assert is_head(str(tmp_path / "head")) and all(value.isfinite().all() for value in state["head"].values())


def test_a_target_that_computes_nothing_finite_stops_the_run(target, tmp_path, monkeypatch):
    """Of some tokens, which the check at loading did not meet."""

    def load(name):
        loaded = load_model(name)
        with torch.inference_mode():
            loaded.model.get_input_embeddings().weight[20:] = torch.nan
        return loaded

    monkeypatch.setattr(run, "load_model", load)
    with pytest.raises(ValueError, match=r"activations that are NaN or infinite: .* are kept"):
        run.generate_texts(str(target), tmp_path / "texts", 2000, (), 0, lambda line: None)
    assert all(np.isfinite(each.features).all() for path in shard_paths(tmp_path / "texts")
               for each in read_signals(signals_of(path), read_shard(path)))  # fmt: skip


def test_signals_that_are_not_finite_are_refused(folder):
    wrong = signals(1)
    wrong[0].features[3, 1] = np.inf
    write_signals(signals_path(folder, 1), wrong, rows(1))
    with pytest.raises(ValueError, match=r"signals/00001\.npz holds values that are not finite: delete it"):
        pairs(folder)


def curve(folder: Path) -> list[dict]:
    def refuse(name: str):
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (folder / "curve.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("loss", r"the loss is nan and its gradient nan: what was kept last stays, .* a --learning-rate below 0\.01"),
        ("gradient", r"the loss is \d\S+ and its gradient nan: what was kept last stays"),
        ("weights", r"norm\.weight of the head holds NaN or infinity: what was kept last stays, .* --learning-rate"),
    ],
)
def test_a_head_of_nan_is_never_written(what, said, target, texts, tmp_path, monkeypatch):
    out = tmp_path / "head"
    run.train_head(str(target), texts, out, replace(SETTINGS, num_tokens=200), lambda line: None)
    for name in ("config.json", "model.safetensors"):
        (out / name).unlink()
    kept = {path.name: path.read_bytes() for path in out.iterdir()}
    learn, loss_of = Training._learn, run.Training._learn.__globals__["loss_of"]

    def wrong_loss(head, *arguments):
        loss = loss_of(head, *arguments)
        return loss * torch.nan if what == "loss" else loss + (head.norm.weight.sum() * 0.0).sqrt()  # slope: 0 * inf

    def wrong_weights(self, batch):
        learn(self, batch)
        if self.num_tokens >= self.settings.num_tokens:  # else the next loss would tell
            self.head.norm.weight.data[0] = torch.nan

    if what == "weights":
        monkeypatch.setattr(Training, "_learn", wrong_weights)
    else:
        monkeypatch.setattr("smartspec.train.fit.loss_of", wrong_loss)
    with pytest.raises(ValueError, match=said):
        run.train_head(str(target), texts, out, SETTINGS, lambda line: None)
    assert not is_head(str(out)) and {path.name: path.read_bytes() for path in out.iterdir()} == kept
    assert len(curve(out)) == 1


def test_a_checkpoint_of_nan_is_not_continued(target, texts, tmp_path):
    run.train_head(str(target), texts, tmp_path, replace(SETTINGS, num_tokens=200), lambda line: None)
    state = torch.load(tmp_path / "training.pt", weights_only=True)
    state["head"]["fc.weight"][0, 0] = torch.inf
    torch.save(state, tmp_path / "training.pt")
    with pytest.raises(ValueError, match=r"training\.pt cannot be continued .*fc\.weight .*NaN or infinity.*delete it"):
        run.train_head(str(target), texts, tmp_path, SETTINGS, lambda line: None)
    (tmp_path / "draft_vocabulary.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"draft_vocabulary\.npy cannot be read"):
        run.train_head(str(target), texts, tmp_path, SETTINGS, lambda line: None)


def test_a_curve_that_finds_no_room_stays_as_it_was(target, texts, tmp_path, monkeypatch):
    run.train_head(str(target), texts, tmp_path, replace(SETTINGS, num_tokens=200), lambda line: None)
    before = (tmp_path / "curve.jsonl").read_bytes()
    replace_file = Path.replace

    def no_room(self, other):
        if self.name.startswith("curve"):
            raise OSError(28, "No space left on device")
        return replace_file(self, other)

    monkeypatch.setattr(Path, "replace", no_room)
    with pytest.raises(OSError, match=r"cannot write .*curve\.jsonl .*No space left.*make room"):
        run.train_head(str(target), texts, tmp_path, SETTINGS, lambda line: None)
    assert (tmp_path / "curve.jsonl").read_bytes() == before and not list(tmp_path.glob("*.partial"))


def other_tokenizer(target: Path, folder: Path) -> Path:
    """The same model, whose tokenizer reads two words as one another."""
    shutil.copytree(target, folder)
    data = json.loads((folder / "tokenizer.json").read_text())
    words = data["model"]["vocab"]
    words["w10"], words["w11"] = words["w11"], words["w10"]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


def test_texts_of_another_tokenizer_are_refused(target, texts, tmp_path):
    other, data = str(other_tokenizer(target, tmp_path / "other")), shutil.copytree(texts, tmp_path / "texts")
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (target, other)]
    assert [tokenizer_of(path) for path in shard_paths(data)] == [tokenizer_digest(tokenizers[0])]
    said = r"tokens/00000\.npz was made with another tokenizer than that of .*: use the model that wrote the texts, or"
    for command in (
        lambda: run.generate_texts(other, data, 400, (), 0, lambda line: None),
        lambda: run.train_head(other, data, tmp_path / "head", SETTINGS, lambda line: None),
        lambda: run.export_data(other, data, tmp_path / "exported", lambda line: None),
    ):
        with pytest.raises(ValueError, match=said):
            command()
    shutil.rmtree(data / "signals")
    with pytest.raises(ValueError, match=said):
        run.train_head(other, data, tmp_path / "head", SETTINGS, lambda line: None)


def byte_tokenizer(*splits: pre_tokenizers.PreTokenizer) -> PreTrainedTokenizerFast:
    """Bytes and a few pairs of them, in texts that are split first: what `tokenizer.ggml.pre` of a GGUF file says."""
    vocabulary = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {"12": 256, "123": 257, "ĊĊ": 258}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("1", "2"), ("12", "3"), ("Ċ", "Ċ")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


DIGITS = pre_tokenizers.Digits(individual_digits=True)


def test_the_same_vocabulary_split_otherwise_is_another_tokenizer():
    lines = pre_tokenizers.Split(Regex(r"\n"), "isolated")
    digests = [tokenizer_digest(byte_tokenizer(*splits)) for splits in ([], [DIGITS], [lines], [])]
    assert len(set(digests[:3])) == 3 and digests[0] == digests[3]


def test_older_texts_are_compared_with_what_the_tokenizer_writes(tmp_path):
    """They do not say which tokenizer made them."""
    before, said = byte_tokenizer(), list[str]()
    for text in ("123 apples", "pears, 你好", "a\n\n12"):
        prompt = before(text)["input_ids"]
        write_shard(tmp_path, [TokenRow(np.array([*prompt, 5, 6], dtype=np.int32), len(prompt))])
    for path in shard_paths(tmp_path)[:2]:  # as they were written before
        with np.load(path) as arrays:
            kept = {name: arrays[name] for name in arrays if name != "tokenizer"}
        np.savez(path, **kept)
    check_tokenizer(tmp_path, "ours", before, said.append)
    assert not said
    check_tokenizer(tmp_path, "ours", byte_tokenizer(DIGITS), said.append)
    assert len(said) == 1 and said[0].startswith(
        f"warning: 3 shards of {tmp_path} do not say which tokenizer made them"
    )
    assert "that of 'ours' writes 2 of their 3 prompts otherwise" in said[0]


def test_signals_of_another_target_are_refused_and_computed_anew(target, texts, tmp_path):
    data = shutil.copytree(texts, tmp_path / "texts")
    other = changed(target, tmp_path / "other", lambda model: model.model.layers[0].self_attn.v_proj.weight.neg_())
    with pytest.raises(ValueError, match=r"signals/00000\.npz differs by \d+% from what .* computes.*delete .*signals"):
        run.train_head(str(other), data, tmp_path / "head", SETTINGS, lambda line: None)
    shutil.rmtree(data / "signals")
    run.train_head(str(other), data, tmp_path / "head", SETTINGS, lambda line: None)
    assert is_head(str(tmp_path / "head"))


def test_two_runs_do_not_write_to_one_folder(target, texts, tmp_path):
    data, out = shutil.copytree(texts, tmp_path / "texts"), tmp_path / "head"
    with alone(data), pytest.raises(ValueError, match=r"another run writes to .*texts: wait until it has ended"):
        run.generate_texts(str(target), data, 400, (), 0, lambda line: None)
    with alone(out), pytest.raises(ValueError, match=r"another run writes to .*head"):
        run.train_head(str(target), data, out, SETTINGS, lambda line: None)
    with alone(data):  # a training may run beside a generation
        run.train_head(str(target), data, out, SETTINGS, lambda line: None)
    with alone(data), alone(out):
        pass
    assert is_head(str(out))


def test_texts_of_this_repository_are_readable():
    data = Path(__file__).parents[2] / "training" / "smollm2-135m-instruct"
    paths = shard_paths(data)
    assert [int(path.stem) for path in paths] == list(range(len(paths)))
    assert all(tokenizer_of(path) == "" or len(tokenizer_of(path)) == 64 for path in paths)
    assert sum(row.num_answer_tokens for row in read_rows(data)) == 1_313_769


def test_models_that_are_loaded_differently_have_one_tokenizer(target):
    assert tokenizer_digest(load_model(str(target)).tokenizer) == tokenizer_digest(
        AutoTokenizer.from_pretrained(target)
    )
