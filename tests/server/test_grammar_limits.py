"""Definitions that take too much: refused with the reason, while others notice nothing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from fake_server import check_error, eventually, form_of, function, grammar_compiler, user

from smartspec.core.origin import Origin
from smartspec.engine.runtime.async_engine import QueueFull
from smartspec.server.structured import grammars
from smartspec.server.structured.fields import StructuredOutputs
from smartspec.server.structured.grammar_check import (
    MAX_REMEMBERED,
    Checked,
    GrammarCheck,
    GrammarCheckFailed,
)
from smartspec.server.structured.grammars import MAX_WAITING_OF_CLIENT, GrammarCompiler
from smartspec.server.structured.token_grammar import TokenGrammar

USER = user("Hello there")


def bomb(number: int) -> dict:
    """Takes 7 s to compile each."""
    return {
        "type": "object",
        "properties": {"a": {"type": "integer", "multipleOf": number}},
        "required": ["a"],
    }


@pytest.fixture(scope="module")
def check(tokenizer):
    compiler = grammar_compiler(tokenizer)
    check = GrammarCheck(compiler._vocabulary)
    yield check
    check.close()


@pytest.fixture
def own_compiler(tokenizer, monkeypatch):
    """Every definition is fine, and takes a megabyte."""
    compiler = GrammarCompiler(tokenizer, len(tokenizer), frozenset({tokenizer.eos_token_id}))
    monkeypatch.setattr(compiler._check, "check", lambda text, *_: Checked(None, 2**20, text))
    yield compiler
    compiler.close()


def definition(**requested) -> str:
    return StructuredOutputs(**requested).definition()


def ask(check, given_up: threading.Event | None = None, **requested) -> Checked:
    return check.check(definition(**requested), given_up or threading.Event())


def helper_pid(check) -> int:
    return check._idle[0]._process.pid


def test_too_much_is_refused_and_the_helper_goes_on(check):
    for requested in ({"json": bomb(999983)}, {"regex": "a?" * 1300 + "a" * 1300}):
        with pytest.raises(ValueError, match=r"more than the 0\.5 s .*: use a simpler one"):
            ask(check, **requested)
    pid = helper_pid(check)
    with pytest.raises(ValueError, match="unclosed"):
        ask(check, regex="((")
    ask(check, regex="a+")
    assert helper_pid(check) == pid


MEMORY = """
import os, sys
from pathlib import Path
from smartspec.server.structured import grammar_worker
sys.stdin = open(os.pipe()[0])  # which does not end
tables = grammar_worker.read_tables(Path(sys.argv[1]).read_text(), None, [])
definition = Path(sys.argv[2]).read_text()
print(grammar_worker._compile_in_fork(tables, definition))
grammar_worker.MAX_COMPILE_BYTES = 2**20
print(grammar_worker._compile_in_fork(tables, definition))
"""


def run_script(script: str, tmp_path: Path, tokenizer, *texts: str) -> subprocess.CompletedProcess:
    """With a file of the tokenizer, and of each text."""
    command = [sys.executable, "-c", script]
    for text in (grammar_compiler(tokenizer)._vocabulary()["tokenizer_json"], *texts):
        path = tmp_path / str(len(command))
        path.write_text(text)
        command.append(str(path))
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_too_much_memory_ends_the_fork(check, tokenizer, tmp_path, monkeypatch):
    choices = definition(choice=[f"{i:04d}" + "x" * 1000 for i in range(1024)])  # take 7 MB
    answers = run_script(MEMORY, tmp_path, tokenizer, choices).stdout.splitlines()
    assert "'error': None" in answers[0] and answers[1] == str({"signal": int(signal.SIGABRT)})
    monkeypatch.setattr(check, "_query", lambda *_: {"signal": int(signal.SIGABRT)})
    for _ in range(2):
        with pytest.raises(ValueError, match="128 MB"):
            ask(check, json=bomb(7))


def test_what_is_known_is_not_computed_again(check, monkeypatch):
    for _ in range(2):
        ask(check, regex="a+")
        with pytest.raises(ValueError):
            ask(check, regex="((")
        monkeypatch.setattr(check, "_query", None)


def test_a_cancelled_caller_leaves_the_helper_usable(check):
    ask(check, regex="a")
    pid = helper_pid(check)
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(GrammarCheckFailed):
        ask(check, given_up, json=bomb(999979))
    assert helper_pid(check) == pid
    with pytest.raises(ValueError, match=r"0\.5 s"):
        ask(check, json=bomb(999979))


def test_a_helper_that_dies_is_replaced(check):
    ask(check, regex="a")
    pid = helper_pid(check)
    os.kill(pid, signal.SIGKILL)
    check._idle[0]._process.wait()
    with pytest.raises(GrammarCheckFailed):
        ask(check, regex="b")
    ask(check, regex="b")
    assert helper_pid(check) != pid


SCRIPT = """
import os, signal, sys, threading
from pathlib import Path
from smartspec.server.structured.grammar_check import GrammarCheck
check = GrammarCheck(lambda: {"tokenizer_json": Path(sys.argv[1]).read_text(), "vocab_size": None, "eos_token_ids": []})
check.check('{"grammars": [{"lark_grammar": "start: /a+/"}]}', threading.Event())
helper = check._idle[0]._process
print(helper.pid, *(name for name in ("torch", "transformers") if name in sys.modules), flush=True)
if len(sys.argv) > 2:
    helper.stdin.write(Path(sys.argv[2]).read_bytes())
    helper.stdin.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""  # noqa: E501


@pytest.mark.parametrize(
    "busy_with", [(), (json.dumps(definition(json=bomb(999983))) + "\n",)], ids=["idle", "busy"]
)
def test_no_helper_outlives_its_server(tokenizer, tmp_path, busy_with):
    answer = run_script(SCRIPT, tmp_path, tokenizer, *busy_with)
    assert answer.returncode == -signal.SIGKILL, answer.stderr
    (pid,) = answer.stdout.split()
    eventually(
        lambda: (
            not Path(f"/proc/{pid}/cmdline").exists()
            or not Path(f"/proc/{pid}/cmdline").read_bytes()
        )
    )


LETTERS = definition(regex="a+")


@pytest.mark.parametrize(
    ("bound", "words", "is_shared"),
    [("MAX_BYTES", "take 4 MB", True), ("MAX_BYTES_OF_CLIENT", "yours 4 MB", False)],
)
def test_grammars_of_all_requests_and_those_of_a_client_have_a_bound(
    own_compiler, monkeypatch, bound, words, is_shared
):
    monkeypatch.setattr(grammars, bound, 5 * 2**20)

    def compile_for(client: str) -> TokenGrammar:
        return own_compiler.compile(LETTERS, origin=Origin(client))

    held = [compile_for("a") for _ in range(2)]
    copies = [held[0].copy()]
    with pytest.raises(QueueFull, match=words):
        compile_for("b" if is_shared else "a")
    assert is_shared or compile_for("b").allowed().any()
    held.pop(0)
    with pytest.raises(QueueFull):
        compile_for("a")  # a copy of it is still there
    copies.clear()
    assert compile_for("a").allowed().any()
    held.clear()
    assert not own_compiler._num_bytes_of


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": form_of(bomb(900001))}, "response_format"),
        ({"tools": [function("f", bomb(900019))], "tool_choice": "required"}, "tool_choice"),
    ],
    ids=["schema", "arguments"],
)
def test_a_bomb_is_refused_while_another_request_streams(server, fields, param):
    server.executor.hold(after=2)
    with server.completion(prompt="One two three", stream=True) as stream:
        first = next(iter(stream))
        answer = server.chat(messages=[USER], **fields)
        check_error(answer, 400, param, "0.5 s", "use a simpler one")
        server.executor.let_go()
        text = first.choices[0].text + "".join(chunk.choices[0].text for chunk in stream)
    assert text == "One two three"


def test_a_client_that_leaves_ends_the_work_for_it(server, tokenizer):
    compiler = grammar_compiler(tokenizer)
    with pytest.raises(httpx.ReadTimeout):
        server.http.post(
            "/v1/chat/completions",
            json={"messages": [USER], "guided_json": bomb(900061)},
            timeout=0.05,
        )
    eventually(lambda: not compiler._num_waiting_of)
    assert server.chat(messages=[USER], guided_regex="[a-z]+", max_tokens=2).status_code == 200


def test_a_few_wait_at_most(server, tokenizer, monkeypatch):
    waiting = grammar_compiler(tokenizer)._num_waiting_of
    monkeypatch.setitem(waiting, "others", grammars.MAX_WAITING)
    answer = server.chat(messages=[USER], guided_regex="[a-z]+")
    assert answer.status_code == 429 and answer.headers["Retry-After"] == "1"
    assert server.chat(messages=[USER], max_tokens=2).status_code == 200


def test_a_helper_that_fails_is_no_fault_of_the_caller(server, tokenizer, monkeypatch):
    def fail(*_):
        raise GrammarCheckFailed("the helper process that compiles grammars failed")

    monkeypatch.setattr(grammar_compiler(tokenizer)._check, "check", fail)
    answer = server.chat(messages=[USER], guided_regex="[a-z]+")
    check_error(answer, 503, "guided_regex")


def test_what_one_key_asked_for_displaces_nothing_of_another(monkeypatch):
    check, asked = GrammarCheck(dict), []
    monkeypatch.setattr(
        check, "_query", lambda text, _: asked.append(text) or {"error": None, "num_bytes": 1}
    )
    check.check("mine", threading.Event(), "b")
    for number in range(2 * MAX_REMEMBERED):
        check.check(f"other {number}", threading.Event(), "a")
    asked.clear()
    check.check("mine", threading.Event(), "b")
    assert not asked and len([*check._known]) == MAX_REMEMBERED + 1


def test_one_client_takes_half_of_the_places_where_definitions_wait(own_compiler, monkeypatch):
    hold = threading.Event()
    monkeypatch.setattr(own_compiler, "compile", lambda *_: hold.wait(60))

    async def call() -> None:
        waiting = [
            asyncio.create_task(own_compiler.compiled("", Origin("a")))
            for _ in range(MAX_WAITING_OF_CLIENT)
        ]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="32 of yours"):
            await own_compiler.compiled("", Origin("a"))
        waiting.append(asyncio.create_task(own_compiler.compiled("", Origin("b"))))
        await asyncio.sleep(0)
        hold.set()
        await asyncio.gather(*waiting)

    asyncio.run(call())
    assert not own_compiler._num_waiting_of
