"""A small OpenAI-compatible server that behaves as it is told: in this process or in one of its
own."""

import argparse
import json
import os
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

METRICS = ("draft_tokens", "verified_tokens", "accepted_tokens", "decode_rows")


class ScriptedServer(ThreadingHTTPServer):
    """mode: sound, garbage (no stream), cut (ends before [DONE]), hang, refuse (401), no-salt
    (unknown fields are an error). dies_after: the process ends in the middle of the answer after so
    many chat requests. seconds: of one."""

    daemon_threads = True

    def __init__(
        self,
        port: int = 0,
        mode: str = "sound",
        dies_after: int | None = None,
        seconds: float = 0.0,
    ):
        super().__init__(("127.0.0.1", port), Handler)
        self.mode, self.dies_after, self.seconds = mode, dies_after, seconds
        self.bodies: list[dict] = []
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def do_GET(self):
        if self.path == "/metrics":
            count = 10 * len(self.server.bodies)
            text = "".join(f"smartspec_{name}_total {count}\n" for name in METRICS)
            return self._answer(200, text.encode())
        if self.server.mode == "refuse":
            return self._answer(401, b'{"error": {"message": "no such key"}}')
        self._answer(200, b'{"data": [{"id": "m"}]}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        if self.server.mode == "no-salt" and "cache_salt" in body:
            return self._answer(400, b'{"error": {"message": "unknown field cache_salt"}}')
        if self.server.mode == "garbage":
            return self._answer(200, b"data: <html>\n\n")
        if self.server.mode == "hang":
            self.server.ended.wait(30)
            return None
        time.sleep(self.server.seconds)
        self.send_response(200)
        self.end_headers()
        text = {
            "choices": [
                {"index": 0, "delta": {"content": f"{len(body['messages'][-1]['content'])}"}}
            ]
        }
        self._event(json.dumps(text))
        if self.server.dies_after is not None and len(self.server.bodies) > self.server.dies_after:
            os._exit(3)
        if self.server.mode == "cut":
            return None
        self._event(
            json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
        )
        self._event("[DONE]")

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


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
