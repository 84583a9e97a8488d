"""Finished answers: of one salt alone, repeated requests are drafted, and kept over restarts."""

import logging
import os
import stat
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from token_arrays import as_text

from smartspec.core.batch import Batch
from smartspec.core.origin import Origin
from smartspec.core.request import Request, RequestStatus
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters import answer_files
from smartspec.drafters.answer_files import AnswerFiles
from smartspec.drafters.answer_memory import STEP_TOKENS, AnswerMemory
from smartspec.drafters.datastore_drafter import DatastoreDrafter
from smartspec.drafters.finished_answers import FinishedAnswers
from smartspec.drafters.recycling import MAX_SALTS

PROMPT, ANSWER = list(range(40)), list(range(50, 90))


def finish(memory: AnswerMemory, prompt=PROMPT, answer=ANSWER, salt="", request_id=0) -> None:
    """A request runs, and has ended when the next step begins."""
    running = request(prompt, answer, salt, request_id)
    memory.follow(Batch(prefill=(running,), num_prefill_tokens=(len(prompt),)))
    end(running)
    memory.follow(Batch())


def request(prompt, answer, salt="", request_id=0) -> Request:
    """It has written nothing yet."""
    params = SamplingParams(max_tokens=len(answer))
    made = Request(request_id, prompt, params, seed=0, origin=Origin(cache_salt=salt))
    made.answer = answer
    return made


def end(request: Request) -> None:
    """It has written its answer."""
    request.append(request.answer)
    request.status = RequestStatus.FINISHED


def files(folder, tokenizer="digest") -> AnswerFiles:
    return AnswerFiles(folder, tokenizer, 1000)


def drafted(memory: AnswerMemory, salt="", drafter=DatastoreDrafter, text=PROMPT) -> list[int]:
    return (
        drafter(max_draft_tokens=8, memory=memory)
        .of_salt(salt)
        .propose(as_text(text))
        .token_ids.tolist()
    )


@pytest.fixture
def drafter() -> type:
    return DatastoreDrafter


def test_a_repeated_prompt_is_drafted_from_its_first_token(drafter):
    memory = AnswerMemory()
    finish(memory)
    for written in range(0, 32, 8):
        assert (
            drafted(memory, drafter=drafter, text=PROMPT + ANSWER[:written])
            == ANSWER[written : written + 8]
        )
    assert drafted(memory, drafter=drafter, text=PROMPT + ANSWER[:36]) == ANSWER[36:], (
        "an answer ends"
    )


@pytest.mark.parametrize("salt", ["", "a"])
def test_answers_of_one_salt_are_not_in_drafts_of_another(drafter, salt):
    memory = AnswerMemory()
    finish(memory, salt=salt)
    assert {other: len(drafted(memory, other, drafter)) > 0 for other in ("", "a", "b")} == {
        other: other == salt for other in ("", "a", "b")
    }


def test_requests_that_run_or_failed_are_not_remembered():
    memory, running = AnswerMemory(), request(PROMPT, ANSWER)
    memory.follow(Batch(decoding=(running,)))
    running.append(ANSWER[:-1])
    memory.follow(Batch(decoding=(running,)))
    assert not drafted(memory)
    running.fail("nan")
    running.status = RequestStatus.FINISHED
    memory.follow(Batch())
    assert not drafted(memory)


def test_salts_are_forgotten_beyond_a_number(tmp_path):
    memory = AnswerMemory(files(tmp_path / "kept"))
    for number in range(MAX_SALTS + 1):
        finish(memory, salt=f"salt {number}", request_id=number)
        memory.of_salt("salt 0")
    assert len(list((tmp_path / "kept").glob("*.tokens"))) == MAX_SALTS
    assert [len(drafted(memory, f"salt {number}")) > 0 for number in (0, MAX_SALTS, 1)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("key", ["", "key"])
def test_thousands_of_salts_take_the_memory_of_those_that_are_kept(key):
    """Also where more answers end in each step than are taken in."""
    memory, begun = AnswerMemory(), []
    tracemalloc.start()
    for step in range(100):
        memory.follow(Batch(decoding=tuple(begun)))
        for running in begun:
            end(running)
        begun = [
            request(PROMPT, ANSWER[:1], f"{key} {step} {number}", 16 * step + number)
            for number in range(16)
        ]
    memory.follow(Batch())
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1e6 < taken < (MAX_SALTS + 2) * 0.6e6


@pytest.mark.parametrize("kept", ["", "key", "key own", " own"])
def test_salts_of_one_key_displace_nothing_of_another(tmp_path, kept):
    """Neither in memory nor in the folder, nor when a server starts again."""
    other = "" if kept.startswith("key") else "key"
    memory = AnswerMemory(files(tmp_path / "kept"))
    finish(memory, salt=kept)
    for number in range(MAX_SALTS + 8):
        finish(memory, salt=f"{other} {number}", request_id=number)
    assert drafted(memory, kept) == ANSWER[:8]
    assert len(list((tmp_path / "kept").glob("*.tokens"))) == MAX_SALTS + 1
    memory.close()
    oldest = tmp_path / "kept" / f"{answer_files._name(kept)}.tokens"
    os.utime(oldest, (0, 0))
    for number in range(8):
        (tmp_path / "kept" / f"{answer_files._name(f'{other} more {number}')}.tokens").write_bytes(
            b""
        )
    again = AnswerMemory(files(tmp_path / "kept"))
    assert drafted(again, kept) == ANSWER[:8]
    assert len(list((tmp_path / "kept").glob("*.tokens"))) == MAX_SALTS + 2


def test_a_file_that_is_damaged_after_the_start_is_left_out(tmp_path, caplog):
    path = kept(tmp_path / "kept", "key")
    memory = AnswerMemory(files(tmp_path / "kept"))
    damage(path)
    assert not drafted(memory, "key") and "is damaged" in caplog.text


def test_reading_remembers_nothing():
    memory = AnswerMemory()
    for number in range(10):
        assert not drafted(memory, f"key {number}")
    assert not [*memory._of_salt]


def test_however_many_salts_have_answers_as_many_tokens_are_taken_in_before_a_step(monkeypatch):
    """And a key that has many does not keep those of another from their turn."""
    taken = []
    append = FinishedAnswers._append
    monkeypatch.setattr(
        FinishedAnswers, "_append", lambda self, token: (taken.append(token), append(self, token))
    )
    memory, steps = AnswerMemory(), []
    many = [request(PROMPT, [*range(100, 400)], f"a {number}", number) for number in range(20)]
    one = request(PROMPT, ANSWER, "b", 99)
    memory.follow(Batch(decoding=(*many, one)))
    for each in (*many, one):
        end(each)
    while len(taken) < 20 * (32 + 300 + 1) + 32 + len(ANSWER) + 1:
        before = len(taken)
        memory.follow(Batch())
        steps.append(len(taken) - before)
        assert drafted(memory, "b") == ANSWER[:8], "in the first step"
    assert set(steps[:-1]) == {STEP_TOKENS} and steps[-1] <= STEP_TOKENS
    assert all(drafted(memory, f"a {number}") == [*range(100, 108)] for number in range(20))


@pytest.mark.parametrize("salt", ["", "key of a client"])
def test_answers_are_kept_over_a_restart_and_their_owner_alone_can_read_them(tmp_path, salt):
    folder = tmp_path / "kept"
    memory = AnswerMemory(files(folder))
    finish(memory, salt=salt)
    finish(memory, [7, 8, 9], [*range(100, 120)], salt, 1)
    memory.close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.glob("*.tokens"))
    assert not [path for path in folder.iterdir() if salt and salt in path.name]
    again = AnswerMemory(files(folder))
    assert drafted(again, salt) == ANSWER[:8]
    assert drafted(again, salt, text=[7, 8, 9, *range(100, 103)]) == [*range(103, 111)]
    assert not drafted(again, "another")


def test_the_last_answer_is_kept_although_no_step_comes_after_it(tmp_path):
    memory, running = AnswerMemory(files(tmp_path / "kept")), request(PROMPT, ANSWER)
    memory.follow(Batch(decoding=(running,)))
    end(running)
    memory.close()
    memory.close()
    assert drafted(AnswerMemory(files(tmp_path / "kept"))) == ANSWER[:8]


def kept(folder, salt=""):
    memory = AnswerMemory(files(folder))
    finish(memory, salt=salt)
    memory.close()
    return next(folder.glob("*.tokens"))


def test_a_torn_file_loses_its_end_alone(tmp_path):
    path = kept(tmp_path / "kept")
    os.truncate(path, path.stat().st_size - 10)
    memory = AnswerMemory(files(tmp_path / "kept"))
    assert drafted(memory) == ANSWER[:8]
    finish(memory, [7, 8, 9], [*range(100, 120)], request_id=1)
    memory.close()
    assert drafted(AnswerMemory(files(tmp_path / "kept")), text=[7, 8, 9, 100, 101, 102]) == [
        *range(103, 111)
    ]


def test_files_are_cut_to_what_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_files, "MAX_TOKENS", 200)
    monkeypatch.setattr(answer_files, "MAX_BYTES", 4 * 4 * 200)
    memory = AnswerMemory(files(tmp_path / "kept"))
    for number in range(40):
        finish(memory, answer=[*range(number, number + 50)], request_id=number)
    path = next((tmp_path / "kept").glob("*.tokens"))
    assert path.stat().st_size <= 4 * 4 * 200 and stat.S_IMODE(path.stat().st_mode) == 0o600
    memory.close()
    assert drafted(AnswerMemory(files(tmp_path / "kept")), text=[*range(40, 50)]) == [
        *range(50, 58)
    ]


def damage(path):
    path.write_bytes(np.array([1000], dtype="<i4").tobytes())


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda path: path.parent.chmod(0o755),
            r"can be used by others \(mode 755\): .* chmod 700",
        ),
        (damage, "is damaged, it holds numbers that are no tokens: delete it"),
        (
            lambda path: (path.parent / "answers.json").write_text("{"),
            "missing or damaged.: name an empty",
        ),
        (
            lambda path: (path.parent / "answers.json").write_text('{"format": 2}'),
            "another tokenizer or of another version",
        ),
        (lambda path: (path.parent / "answers.json").unlink(), "missing or damaged"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_with_the_remedy(tmp_path, harm, message):
    harm(kept(tmp_path / "kept"))
    with pytest.raises(ValueError, match=message):
        files(tmp_path / "kept")
    os.chmod(tmp_path / "kept", 0o700)


def test_another_tokenizers_answers_and_a_folder_in_use_are_refused(tmp_path):
    first = files(tmp_path / "kept")
    with pytest.raises(ValueError, match="is in use by another server: give each its own folder"):
        files(tmp_path / "kept")
    first.close()
    with pytest.raises(ValueError, match="of another tokenizer"):
        files(tmp_path / "kept", "other")
    files(tmp_path / "kept").close()


def test_a_full_disk_is_said_once_and_drafting_goes_on(tmp_path, monkeypatch, caplog):
    memory = AnswerMemory(files(tmp_path / "kept"))
    monkeypatch.setattr(AnswerFiles, "_path", lambda self, salt: Path("/dev/full"))
    with caplog.at_level(logging.WARNING):
        finish(memory)
        finish(memory, request_id=1)
    assert len(caplog.records) == 1 and "No space left on device" in caplog.text
    assert drafted(memory) == ANSWER[:8]
