"""Texts and signals of another tokenizer or another target are refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import DIGITS, byte_tokenizer
from tiny_training import changed, generate, quiet, train
from tokenizers import Regex, pre_tokenizers
from transformers import AutoTokenizer

from lab.train import run
from lab.train.origin import check_tokenizer
from lab.train.shards import shard_paths, write_shard
from smartspec.engine.drafting.head.kinds import is_head
from smartspec.engine.models.load import load_model
from smartspec.texts.shards import TokenRow, tokenizer_digest, tokenizer_of


def other_tokenizer(target: Path, folder: Path) -> Path:
    """The same model, whose tokenizer reads two words as one another."""
    shutil.copytree(target, folder)
    data = json.loads((folder / "tokenizer.json").read_text())
    words = data["model"]["vocab"]
    words["w10"], words["w11"] = words["w11"], words["w10"]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


def test_texts_of_another_tokenizer_are_refused(target, texts, tmp_path):
    other, data = (
        str(other_tokenizer(target, tmp_path / "other")),
        shutil.copytree(texts, tmp_path / "texts"),
    )
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (target, other)]
    assert [tokenizer_of(path) for path in shard_paths(data)] == [tokenizer_digest(tokenizers[0])]
    said = (
        r"tokens/00000\.npz was made with another tokenizer than that of .*: use the model that "
        r"wrote the texts, or"
    )
    for command in (
        lambda: generate(other, data, 400),
        lambda: train(other, data, tmp_path / "head"),
        lambda: run.export_data(other, data, tmp_path / "exported", quiet),
    ):
        with pytest.raises(ValueError, match=said):
            command()
    shutil.rmtree(data / "signals")
    with pytest.raises(ValueError, match=said):
        train(other, data, tmp_path / "head")


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
    other = changed(
        target,
        tmp_path / "other",
        lambda model: model.model.layers[0].self_attn.v_proj.weight.neg_(),
    )
    with pytest.raises(
        ValueError,
        match=r"signals/00000\.npz differs by \d+% from what .* computes.*delete .*signals",
    ):
        train(other, data, tmp_path / "head")
    shutil.rmtree(data / "signals")
    assert is_head(str(train(other, data, tmp_path / "head")))


def test_models_that_are_loaded_differently_have_one_tokenizer(target):
    assert tokenizer_digest(load_model(str(target)).tokenizer) == tokenizer_digest(
        AutoTokenizer.from_pretrained(target)
    )
