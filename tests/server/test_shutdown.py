"""SIGTERM lets requests finish, for a while; Ctrl-C does not. Both say so to clients."""

import json
import signal

import httpx
import openai
import pytest
from fake_server import FakeServer, check_error, eventually, running_server
from test_life_cycle import ENDLESS, in_background, text_of

from smartspec.server.http.errors import RETRY_AFTER_SECONDS


def stop(server: FakeServer, *signals: signal.Signals) -> None:
    """What the process does when it gets these signals; the server runs in a thread, which gets
    none."""
    for number in signals:
        server.web_server.handle_exit(number, None)


def test_sigterm_lets_requests_finish_and_refuses_new_ones(tokenizer):
    with running_server(tokenizer, drain_seconds=30) as server:
        server.executor.hold()
        request = in_background(server, prompt="One two")
        eventually(lambda: server.engine.num_requests == 1)
        assert server.http.get("/health").status_code == server.http.get("/live").status_code == 200
        stop(server, signal.SIGTERM)
        assert server.http.get("/health").status_code == 503
        assert server.http.get("/live").status_code == 200
        refused = server.complete(prompt="Three")
        check_error(refused, 503, None, code="engine_stopped")
        assert refused.headers["retry-after"] == str(RETRY_AFTER_SECONDS)
        with pytest.raises(openai.InternalServerError, match="stopping"):
            server.completion(prompt="Three")
        server.executor.let_go()
        assert text_of(request) == "One two"
        eventually(lambda: not server.engine.alive)


@pytest.mark.parametrize(
    ("drain_seconds", "signals"),
    [(0.2, [signal.SIGTERM]), (30, [signal.SIGTERM, signal.SIGTERM]), (30, [signal.SIGINT])],
    ids=["too slow", "told twice", "Ctrl-C"],
)
def test_what_does_not_finish_is_told_so(tokenizer, drain_seconds, signals):
    with running_server(tokenizer, drain_seconds=drain_seconds) as server:
        server.executor.hold(after=5)
        with server.http.stream(
            "POST", "/v1/completions", json=ENDLESS | {"stream": True}
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            whole = in_background(server, **ENDLESS)
            eventually(lambda: server.engine.num_requests == 2)
            stop(server, *signals)
            eventually(lambda: server.engine._stopped)
            server.executor.let_go()
            events = [line for line in lines if line]
        error = json.loads(events[-1].removeprefix("data: "))["error"]
        assert (error["code"], error["type"]) == (
            "engine_stopped",
            "server_error",
        ) and "stopped" in error["message"]
        assert whole.result(30).status_code == 503


def test_head_requests_of_load_balancers(server):
    for path in ("/health", "/live", "/ping"):
        answer = httpx.head(server.url + path)
        assert (answer.status_code, answer.content) == (200, b"")
