"""Answers that a server kept become training rows, once each, of its own tokenizer alone."""

import numpy as np
import pytest
from tiny_training import quiet, train

from lab.train.from_log import MIN_ANSWER, rows_of, take_answers
from lab.train.shards import read_rows
from smartspec.drafters.answer_files import AnswerFiles
from smartspec.drafters.finished_answers import END, PROMPT_TOKENS
from smartspec.drafters.tokenizer_digest import quick_digest
from smartspec.engine.models.load import load_model


@pytest.fixture(scope="module")
def loaded(target):
    return load_model(str(target))


def kept(folder, loaded, answers: dict[str, list[list[int]]]) -> AnswerFiles:
    files = AnswerFiles(folder, quick_digest(loaded.tokenizer), loaded.vocab_size)
    for salt, some in answers.items():
        for token_ids in some:
            files.append(salt, token_ids)
    return files


def random_text(num: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 30, num).tolist()


def test_answers_are_taken_once_each_while_the_server_runs(target, loaded, tmp_path):
    texts, said = [random_text(PROMPT_TOKENS + 20, seed) for seed in range(3)], []
    files = kept(tmp_path / "log", loaded, {"": texts[:2], "of a key": [texts[1]]})
    take_answers(str(target), tmp_path / "log", tmp_path / "data", said.append)
    assert sorted(row.token_ids.tolist() for row in read_rows(tmp_path / "data")) == sorted(
        texts[:2]
    )
    assert {row.answer_start for row in read_rows(tmp_path / "data")} == {PROMPT_TOKENS}
    files.append("", texts[2])
    take_answers(str(target), tmp_path / "log", tmp_path / "data", said.append)
    assert [line[:24] for line in said] == ["2 answers of 40 tokens f", "1 answers of 20 tokens f"]
    assert len(list(read_rows(tmp_path / "data"))) == 3


def test_a_head_learns_from_them(target, loaded, tmp_path):
    texts = [random_text(PROMPT_TOKENS + 20, seed) for seed in range(40)]
    kept(tmp_path / "log", loaded, {"": texts}).close()
    take_answers(str(target), tmp_path / "log", tmp_path / "data", quiet)
    head = train(target, tmp_path / "data", tmp_path / "head")
    assert (head / "config.json").exists()


def test_torn_short_and_endless_answers_are_left_out():
    short, loop = (
        random_text(PROMPT_TOKENS + MIN_ANSWER - 1, 0),
        random_text(PROMPT_TOKENS, 1) + [5, 6] * 60,
    )
    whole, torn = random_text(PROMPT_TOKENS + MIN_ANSWER, 2), random_text(90, 3)
    tokens = np.array([*short, END, *loop, END, *whole, END, *torn], dtype=np.int32)
    assert [row.token_ids.tolist() for row in rows_of(tokens)] == [whole]


def test_folders_of_others_are_named(target, loaded, tmp_path):
    with pytest.raises(ValueError, match="holds no answers: name the --datastore-memory"):
        take_answers(str(target), tmp_path, tmp_path / "data", quiet)
    AnswerFiles(tmp_path / "other", "of another tokenizer", loaded.vocab_size).close()
    with pytest.raises(ValueError, match="of another tokenizer"):
        take_answers(str(target), tmp_path / "other", tmp_path / "data", quiet)
