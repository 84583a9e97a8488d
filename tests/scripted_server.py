"""A small OpenAI-compatible server that behaves as it is told: in this process or in one of its
own."""

import argparse
import json
import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = ("One", " two", " três")
USAGE = {"prompt_tokens": 5, "completion_tokens": 6}
PER_ANSWER = {"draft_tokens": 40, "verified_tokens": 20, "accepted_tokens": 10, "decode_rows": 10}


@dataclass(frozen=True)
class Answer:
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


REFUSALS = {
    "busy": Answer(b'{"error": {"message": "the queue is full"}}', 429),
    "garbage": Answer(b"data: <html>\n\n"),
    "no-salt": Answer(b'{"error": {"message": "unknown field cache_salt"}}', 400),
}


class ScriptedServer(ThreadingHTTPServer):
    """What it does with a request is said by the prompt, else by mode: sound, one of REFUSALS
    (no-salt: where there is one), cut (ends before [DONE]), hang, refuse (401 for models).
    dies_after: the process ends in the middle of the answer after so many. seconds: of one.
    answers_from: so many requests are under way before one is answered. answers: in place of all
    this, in turn, the last one as often as it is asked; said: texts to GETs, by path."""

    daemon_threads = True

    def __init__(
        self, port=0, mode="sound", dies_after=None, seconds=0.0, answers_from=1, answers=(),
        said=None,
    ):  # fmt: skip
        super().__init__(("127.0.0.1", port), Handler)
        self.mode, self.dies_after, self.seconds = mode, dies_after, seconds
        self.answers_from, self.answers, self.said = answers_from, list(answers), said
        self.bodies: list[dict] = []
        self.authorizations: list[str | None] = []
        self.num_answered = self.num_under_way = self.most_under_way = 0
        self.changed = threading.Condition()
        self.enough, self.hangs, self.ended = (threading.Event() for _ in range(3))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, change: int) -> None:
        """Requests that have come, or gone."""
        with self.changed:
            self.num_under_way += change
            self.most_under_way = max(self.most_under_way, self.num_under_way)
        if self.num_under_way >= self.answers_from:
            self.enough.set()


class Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def do_GET(self):
        if self.server.mode == "refuse":
            return self._send(Answer(b'{"error": {"message": "no such key"}}', 401))
        counts = {name: self.server.num_answered * each for name, each in PER_ANSWER.items()}
        told = {
            "/metrics": "".join(f"smartspec_{name}_total {n}.0\n" for name, n in counts.items()),
            "/v1/speculation": '{"policy": "goodput"}',
            "/v1/models": '{"data": [{"id": "m"}, {"id": "other"}]}',
            "/health": "",
        }
        text = (told if self.server.said is None else self.server.said).get(self.path)
        self._send(Answer(status=404) if text is None else Answer(text.encode()))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        self.server.authorizations.append(self.headers["authorization"])
        if answers := self.server.answers:
            return self._send(answers.pop(0) if len(answers) > 1 else answers[0])
        self.server.count(1)
        self._answer(body)
        self.server.count(-1)

    def _answer(self, body: dict) -> None:
        prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        mode = prompt if prompt in ("busy", "hang") else self.server.mode
        if mode in REFUSALS and (mode != "no-salt" or "cache_salt" in body):
            self._send(REFUSALS[mode])
            return
        if mode == "hang":
            self.server.hangs.set()
            self.server.ended.wait(30)
            return
        self.server.enough.wait()
        time.sleep(self.server.seconds)
        self._send(Answer())
        *first, last = (
            {"delta": {"content": word}} if "messages" in body else {"text": word} for word in WORDS
        )
        self._events(*({"choices": [choice]} for choice in first))
        if self.server.dies_after is not None and len(self.server.bodies) > self.server.dies_after:
            os._exit(3)
        if mode != "cut":
            self.server.num_answered += 1
            self._events({"choices": [last | {"finish_reason": "stop"}]}, {"usage": USAGE})
            self.wfile.write(b"data: [DONE]\n\n")

    def _events(self, *chunks: dict) -> None:
        for chunk in chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *arguments):
        pass


def start_in_terminal(*command: str) -> subprocess.Popen:
    """A process that notices interrupts, which a job in the background of a script does not."""
    notice_interrupts = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, preexec_fn=notice_interrupts, **pipes)


@contextmanager
def scripted(**options):
    server = ScriptedServer(**options)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mode", default="sound")
    parser.add_argument("--dies-after", type=int)
    given = parser.parse_args()
    if given.mode == "no start":
        raise SystemExit("error: there is no such model")
    ScriptedServer(given.port, given.mode, given.dies_after).serve_forever()
