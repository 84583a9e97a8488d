"""Load, departures and failures: queue limits, clients that go away, steps that raise."""

from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest
from fake_server import (
    NeverHalfClosed,
    check_error,
    events_of,
    eventually,
    running_server,
    whole_and_streamed,
)
from test_connections import post

from smartspec.server.http.errors import RETRY_AFTER_SECONDS

ENDLESS = {"prompt": "One two three", "max_tokens": 400, "ignore_eos": True}


def in_background(server, **body) -> Future[httpx.Response]:
    """A completion in a thread of its own."""
    return ThreadPoolExecutor(1).submit(server.complete, **body)


def text_of(request: Future[httpx.Response]) -> str:
    return request.result(30).json()["choices"][0]["text"]


def num_requests(server) -> int:
    return server.core.num_running + server.core.num_waiting


def test_queue_full(small_server):
    small_server.executor.hold()
    waiting = [in_background(small_server, prompt="One two") for _ in range(2)]
    eventually(lambda: small_server.engine.num_requests == 2)
    answer = small_server.complete(prompt="One two")
    check_error(answer, 429, None, code="queue_full")
    assert answer.headers["retry-after"] == str(RETRY_AFTER_SECONDS)
    streamed = small_server.complete(prompt="One two", stream=True)
    assert streamed.status_code == 429
    small_server.executor.let_go()
    assert [text_of(request) for request in waiting] == ["One two"] * 2
    assert small_server.complete(prompt="One two").status_code == 200


@whole_and_streamed
def test_a_client_that_leaves_frees_its_request_before_the_next_step(tokenizer, stream):
    with running_server(tokenizer, connection=NeverHalfClosed) as server:
        server.executor.hold(after=3)
        with server.connect() as connection:
            connection.sendall(post(**ENDLESS, stream=stream))
            eventually(lambda: server.executor.num_steps == 4)
        assert server.core.num_running == 1
        eventually(lambda: server.engine.num_requests == 0)
        server.executor.let_go()
        eventually(lambda: num_requests(server) == 0)
        assert server.executor.num_steps == 4
        assert server.core.scheduler.blocks.num_used_blocks == 0
        assert count(server, "aborted") > 0


def test_a_failed_step_costs_only_the_requests_in_it(server, caplog):
    server.executor.fail(after=1)
    answer = server.complete(prompt="One two")
    assert answer.status_code == 500
    assert "secret" not in answer.text and "Traceback" not in answer.text
    assert "the secret reason" in caplog.text
    assert num_requests(server) == 0
    assert server.completed(prompt="One two") == "One two"


def test_a_stream_that_fails_ends_with_an_error_event(server):
    server.executor.fail(after=3)
    with server.http.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as answer:
        events = [line for line in answer.iter_lines() if line]
    assert len(events) > 1 and "choices" in events[0]
    assert "engine_error" in events[-1] and "secret" not in events[-1]


@pytest.mark.parametrize(
    ("is_callers", "status", "words", "kind", "code", "outcome"),
    [
        (False, 500, "logits are NaN", "server_error", "engine_error", "error"),
        (True, 400, "no token is left", "invalid_request_error", "invalid_value", "rejected"),
    ],
    ids=["the model's fault", "the caller's"],
)
def test_a_request_without_a_prediction_is_told_so_and_its_neighbour_is_served(
    either_server, tokenizer, is_callers, status, words, kind, code, outcome
):
    (bad,) = tokenizer(" nothing")["input_ids"]
    executor, counted = either_server.executor, count(either_server, outcome)
    executor.bad_token_id, executor.is_callers = bad, is_callers
    neighbour = in_background(either_server, prompt="One two three four")
    answer = either_server.complete(prompt=[5, 6, bad])
    check_error(answer, status, None, words, code=code)
    assert answer.json()["error"]["type"] == kind
    *events, last = events_of(either_server.complete(prompt=[5, 6, bad], stream=True).text)
    assert last == answer.json()
    seen = "".join(event["choices"][0]["text"] for event in events)
    assert " nothing".startswith(seen), "it says the prompt back, whose other tokens have no text"
    assert text_of(neighbour) == "One two three four"
    eventually(lambda: either_server.engine.num_requests == num_requests(either_server) == 0)
    assert either_server.core.scheduler.blocks.num_used_blocks == 0
    assert count(either_server, outcome) == counted + 2
    executor.bad_token_id = None


def test_an_unforeseen_error_is_a_plain_500(server, monkeypatch):
    monkeypatch.setattr(
        "smartspec.server.openai.calls.check_model", lambda requested, served: 1 / 0
    )
    answer = server.complete(prompt="One two")
    check_error(answer, 500, None, code="internal_error")
    assert "division" not in answer.text


def test_many_at_once_all_get_their_own_answer(burst_server):
    requests = [
        in_background(burst_server, prompt=f"request number {i}", max_tokens=50) for i in range(8)
    ]
    texts = [text_of(request) for request in requests]
    assert texts == [f"request number {i}" for i in range(8)]


def count(server, outcome: str) -> float:
    return server.metrics()[f'smartspec_requests_total{{outcome="{outcome}"}}']
