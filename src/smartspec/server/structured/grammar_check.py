"""Compiles a grammar in a helper process first, to know whether it may be compiled in the server.

A definition of a hundred bytes can take minutes and gigabytes, and nothing stops llguidance once it
compiles. A helper process can be stopped. A definition that goes over a limit there is refused with
the reason. The helpers start with the first definition. A few run at once, and their answers are
cached.
"""

import json
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from smartspec.core.per_key import PerKey
from smartspec.server.structured import grammar_worker
from smartspec.server.structured.grammar_worker import (
    MAX_COMPILE_BYTES,
    MAX_COMPILE_SECONDS,
    MAX_WAIT_SECONDS,
)

MAX_REMEMBERED = 128  # definitions of one API key
MAX_ANSWER_SECONDS = MAX_WAIT_SECONDS + 60.0  # of a helper that starts, or that compiles
POLL_SECONDS = 0.02  # how soon a helper stops after the caller was cancelled
REMEDY = (
    "use a simpler one: fewer alternatives, smaller counts in {m,n}, minLength, maxItems or "
    "multipleOf, less nesting"
)


class GrammarCheckFailed(Exception):
    """The helper process could not answer; the definition may be fine."""


class GrammarCheck:
    """vocabulary: makes the arguments of grammar_worker.read_tables, where a helper is started."""

    def __init__(self, vocabulary: Callable[[], dict]):
        self._vocabulary = vocabulary
        self._idle: list[_Helper] = []
        self._known: PerKey[bytes, Checked] = PerKey(MAX_REMEMBERED)
        self._lock = threading.Lock()

    def check(self, definition: str, given_up: threading.Event, key: str = "") -> "Checked":
        """What may be compiled; it is remembered for this API key. Raises ValueError saying why
        nothing can be compiled or what is too much of it, GrammarCheckFailed where that is not
        known: given_up was set, or the helper has died."""
        digest = sha256(definition.encode()).digest()
        with self._lock:
            answer = self._known.get(key, digest)
        if answer is None:
            answer = _read(self._query(definition, given_up))
        with self._lock:
            self._known.put(key, digest, answer)
        if answer.error is not None:
            raise ValueError(answer.error)
        return answer

    def close(self) -> None:
        """End the helpers that have nothing to do; others would be started where one is needed."""
        while self._idle:
            self._idle.pop().close()

    def _query(self, definition: str, given_up: threading.Event) -> dict:
        with self._lock:
            helper = self._idle.pop() if self._idle else None
        questions = [definition]
        try:
            if helper is None:
                helper, questions = _Helper(), [self._vocabulary(), definition]
            answer = helper.query(questions, given_up)
        except (OSError, ValueError) as error:
            if helper is not None:
                helper.close()
            raise GrammarCheckFailed(
                f"the helper process that compiles grammars failed ({error})"
            ) from error
        with self._lock:
            self._idle.append(helper)
        return answer


@dataclass(frozen=True)
class Checked:
    """error: None where the definition, with closed arguments, can be compiled. num_bytes: what
    that takes."""

    error: str | None
    num_bytes: int = 0
    definition: str = ""


def _read(answer: dict) -> Checked:
    ended_by = answer.get("signal")
    if ended_by is None:
        return Checked(**answer)
    if ended_by == signal.SIGPROF:
        return Checked(
            f"it takes more than the {MAX_COMPILE_SECONDS:g} s that compiling it may take: {REMEDY}"
        )
    if ended_by in (signal.SIGALRM, signal.SIGKILL, signal.SIGTERM):
        raise GrammarCheckFailed("compiling the grammar was given up")
    return Checked(
        f"compiling it takes more than {MAX_COMPILE_BYTES >> 20} MB, or it is nested too deeply: "
        f"{REMEDY}"
    )


class _Helper:
    """One helper process. Everything raises OSError or ValueError where it has died or does not
    answer."""

    def __init__(self):
        # By its path, so that it imports nothing of ours; with pipes alone, which close when this
        # process ends.
        command = [sys.executable, "-P", grammar_worker.__file__]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):  # of what it died before reading
            self._process.stdin.close()
        self._process.stdout.close()

    def query(self, questions: Sequence[object], given_up: threading.Event) -> dict:
        """The answer to a definition, before which a new helper is told the vocabulary."""
        self._process.stdin.writelines(json.dumps(each).encode() + b"\n" for each in questions)
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            for _ in range(int(MAX_ANSWER_SECONDS / POLL_SECONDS)):
                if selector.select(POLL_SECONDS):
                    return json.loads(self._process.stdout.readline())
                if given_up.is_set():
                    self._process.terminate()  # it ends what it is doing, and says so
        raise OSError(f"no answer in {MAX_ANSWER_SECONDS:g} s")
