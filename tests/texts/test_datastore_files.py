"""Files of texts that become a datastore."""

import errno
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from byte_tokenizer import DIGITS, byte_tokenizer

from lab.train.shards import write_shard
from smartspec.cli import main
from smartspec.drafters.datastore import Datastore
from smartspec.drafters.recycling import pack
from smartspec.texts import datastore
from smartspec.texts.datastore import TextReader, build_datastore
from smartspec.texts.shards import TokenRow, tokenizer_digest

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def tokenizer():
    made = byte_tokenizer()
    made.chat_template = CHAT
    return made


@pytest.fixture(autouse=True)
def loaded(monkeypatch, tokenizer):
    monkeypatch.setattr(
        datastore,
        "load_model",
        lambda name, **options: SimpleNamespace(tokenizer=tokenizer, vocab_size=259),
    )


def texts_of(path: Path, tokenizer) -> list[tuple[str, str]]:
    """What is context and what is counted."""
    texts = list(TextReader("tiny", tokenizer).read(path))
    return [
        (tokenizer.decode(t.token_ids[: t.start]), tokenizer.decode(t.token_ids[t.start :]))
        for t in texts
    ]


def test_rows_are_answers_after_their_prompt_or_texts(tmp_path, tokenizer):
    rows = [
        {"prompt": "hi", "answer": "yes"},
        {"answer": "no"},
        {"text": "a b", "prompt": "c"},
        {"prompt": "alone"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(map(json.dumps, rows)))
    assert texts_of(path, tokenizer) == [
        ("<user>hi<assistant>", "yes"),
        ("", "no"),
        ("", "a b"),
        ("", "alone"),
    ]
    tokenizer.chat_template = None
    assert texts_of(path, tokenizer)[0] == ("", "yes")


def test_plain_text_is_read_in_pieces_that_end_with_a_line(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(datastore, "PIECE", 8)
    path = tmp_path / "book"
    path.write_text("one\ntwo\r\nthree\nfour", newline="")
    assert [text for _, text in texts_of(path, tokenizer)] == ["one\ntwo\r\n", "three\nfour"]


def test_answers_of_shards_become_the_tokens_of_today(tmp_path, tokenizer):
    """An older version had one token for 123, today each digit has its own."""
    today = byte_tokenizer(DIGITS)
    prompt, answer = tokenizer("7 is ")["input_ids"], tokenizer("123 123")["input_ids"]
    path = write_shard(
        tmp_path, [TokenRow(np.array([*prompt, *answer], dtype=np.int32), len(prompt))]
    )
    (text,) = TextReader("tiny", today).read(path)
    assert list(text.token_ids) == [*prompt, *today("123 123")["input_ids"]] and text.start == len(
        prompt
    )
    assert 257 in answer and 257 not in text.token_ids


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            b'{"text": "a"}\n\n{"other": 1}',
            r'a\.jsonl, line 3 is no JSON object with a string "answer"',
        ),
        ("a.jsonl", b"{", r"a\.jsonl, line 1 is no JSON"),
        ("a.jsonl", b'{"text": 3}', r"a\.jsonl, line 1 is no JSON"),
        ("a.txt", b"\xff\xfe", r"a\.txt is no text in UTF-8"),
        ("00000.npz", b"PK", r"00000\.npz is not a shard"),
        ("a.txt", b"", "give more text"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        build_datastore("tiny", [tmp_path / name], tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_shards_of_another_tokenizer_or_vocabulary_are_refused(tmp_path, tokenizer):
    rows = [TokenRow(np.array([1, 2, 259], dtype=np.int32), 1)]
    for digest, message in (
        ("other", "made with another tokenizer"),
        ("", "tokens that 'tiny' does not know"),
    ):
        path = write_shard(tmp_path, rows, digest)
        with pytest.raises(ValueError, match=message):
            build_datastore("tiny", [path], tmp_path / "store")
    write_shard(
        tmp_path, [TokenRow(np.array([1, 2], dtype=np.int32), 1)], tokenizer_digest(tokenizer)
    )


def test_missing_files_and_folders_without_texts_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        build_datastore("tiny", [tmp_path / "none.txt"], tmp_path / "store")
    with pytest.raises(ValueError, match=r"holds no texts: files there must end in \.npz"):
        build_datastore("tiny", [tmp_path], tmp_path / "store")


def run(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["smartspec", "datastore", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main.main()
    return int(caught.value.code or 0), *capsys.readouterr()


def test_the_commands_build_a_store_and_say_what_it_is(tmp_path, monkeypatch, capsys, tokenizer):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("abc " * 9)
    (tmp_path / "texts" / "notes.md").write_text("not read")
    build = ("build", tmp_path / "texts", "--model", "tiny", "--out", tmp_path / "store")
    code, out, _ = run(monkeypatch, capsys, *build)
    assert code == 0 and "made of 36 tokens of 1 texts" in out
    context = pack(np.array(tokenizer("ab")["input_ids"]))
    assert tokenizer.decode(Datastore(tmp_path / "store").lookup(context).tokens) == "c"
    assert run(monkeypatch, capsys, "info", tmp_path / "store")[:2] == (0, out)
    code, _, error = run(monkeypatch, capsys, *build)
    assert code == 2 and "exists: name a new folder" in error
    code, _, error = run(monkeypatch, capsys, "info", tmp_path / "texts")
    assert code == 2 and "is no datastore" in error


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted: nothing was written"),
        (OSError(errno.ENOSPC, "full"), 2, "make room"),
    ],
)
def test_a_build_that_fails_leaves_nothing(tmp_path, monkeypatch, capsys, failure, code, said):
    def fail(descriptor):
        raise failure

    (tmp_path / "a.txt").write_text("abc " * 9)
    monkeypatch.setattr(os, "fsync", fail)
    found = run(
        monkeypatch,
        capsys,
        "build",
        tmp_path / "a.txt",
        "--model",
        "tiny",
        "--out",
        tmp_path / "store",
    )
    assert found[0] == code and said in found[2]
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
