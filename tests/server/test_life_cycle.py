"""Load, departures and failures: queue limits, clients that go away, steps that raise."""

import threading

import pytest
from fake_server import MODEL, NeverHalfClosed, check_error, events_of, eventually, running_server
from test_connections import post

from smartspec.server.http.errors import RETRY_AFTER_SECONDS

ENDLESS = {"prompt": "One two three", "max_tokens": 400, "ignore_eos": True}


class Background:
    """A request in a thread of its own; answer is there after join."""

    def __init__(self, server, **body):
        self.answer = None
        self._thread = threading.Thread(target=self._send, args=(server, body))
        self._thread.start()

    def _send(self, server, body):
        self.answer = server.complete(**body)

    def join(self):
        self._thread.join(timeout=30)
        return self.answer

    def text(self) -> str:
        return self.join().json()["choices"][0]["text"]


def num_requests(server) -> int:
    return server.core.num_running + server.core.num_waiting


def test_queue_full(small_server):
    small_server.executor.hold()
    waiting = [Background(small_server, prompt="One two") for _ in range(2)]
    eventually(lambda: small_server.engine.num_requests == 2)
    answer = small_server.complete(prompt="One two")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, str(RETRY_AFTER_SECONDS))
    assert answer.json()["error"]["code"] == "queue_full"
    streamed = small_server.complete(prompt="One two", stream=True)
    assert streamed.status_code == 429
    small_server.executor.let_go()
    assert [request.text() for request in waiting] == ["One two"] * 2
    assert small_server.complete(prompt="One two").status_code == 200


@pytest.fixture
def left_server(tokenizer):
    with running_server(tokenizer, connection=NeverHalfClosed) as fake_server:
        yield fake_server


def test_client_that_leaves_a_stream_frees_its_request_before_the_next_step(left_server):
    server = left_server
    num_steps = server.executor.num_steps
    server.executor.hold(after=3)
    with server.http.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as answer:
        next(answer.iter_lines())
        eventually(lambda: server.executor.num_steps == num_steps + 4)
    check_freed(server, num_steps + 4)


def test_client_that_leaves_before_the_answer_frees_its_request_before_the_next_step(left_server):
    server = left_server
    num_steps = server.executor.num_steps
    server.executor.hold()
    with server.connect() as connection:
        connection.sendall(post(**ENDLESS))
        eventually(lambda: server.executor.num_steps == num_steps + 1)
    check_freed(server, num_steps + 1)


def check_freed(server, num_steps: int) -> None:
    """Called while the step of that number is under way and the client just gone: no step may
    follow."""
    assert server.core.num_running == 1
    eventually(lambda: server.engine.num_requests == 0)
    server.executor.let_go()
    eventually(lambda: num_requests(server) == 0)
    assert server.executor.num_steps == num_steps
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


def test_a_request_without_a_prediction_is_told_so_and_its_neighbour_is_served(
    either_server, tokenizer
):
    (bad,) = tokenizer(" nothing")["input_ids"]
    either_server.executor.bad_token_id = bad
    neighbour = Background(either_server, prompt="One two three four")
    answer = either_server.complete(prompt=[5, 6, bad])
    check_error(answer, 500, None, "logits are NaN")
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_error")
    *events, last = events_of(either_server.complete(prompt=[5, 6, bad], stream=True).text)
    assert last == answer.json()
    seen = "".join(event["choices"][0]["text"] for event in events)
    assert " nothing".startswith(seen), "it says the prompt back, whose other tokens have no text"
    assert neighbour.text() == "One two three four"
    eventually(lambda: either_server.engine.num_requests == num_requests(either_server) == 0)
    assert either_server.core.scheduler.blocks.num_used_blocks == 0
    either_server.executor.bad_token_id = None


def test_rules_that_leave_no_token_are_a_bad_request(server, tokenizer):
    (server.executor.bad_token_id,) = tokenizer(" nothing")["input_ids"]
    server.executor.is_callers = True
    body = {"prompt": [5, 6, server.executor.bad_token_id]}
    rejected = count(server, "rejected")
    answer = server.complete(**body)
    check_error(answer, 400, None, "no token is left")
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")
    assert events_of(server.complete(stream=True, **body).text)[-1] == answer.json()
    assert count(server, "rejected") == rejected + 2
    server.executor.bad_token_id, server.executor.is_callers = None, False


def test_an_unforeseen_error_is_a_plain_500(server, monkeypatch):
    monkeypatch.setattr(
        "smartspec.server.openai.calls.check_model", lambda requested, served: 1 / 0
    )
    answer = server.complete(prompt="One two")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "division" not in answer.text


def test_many_at_once_all_get_their_own_answer(burst_server):
    requests = [
        Background(burst_server, prompt=f"request number {i}", max_tokens=50) for i in range(8)
    ]
    texts = [request.text() for request in requests]
    assert texts == [f"request number {i}" for i in range(8)]


def count(server, outcome: str) -> float:
    return server.metrics()[f'smartspec_requests_total{{outcome="{outcome}"}}']


def test_metrics(burst_server, tokenizer):
    before = burst_server.metrics()
    prompt = "some words for the metrics, one two three four five six seven"
    burst_server.complete(prompt=prompt, max_tokens=64)
    num_tokens = len(tokenizer(prompt)["input_ids"])
    after = burst_server.metrics()

    def grown(name: str) -> float:
        return after[f"smartspec_{name}"] - before[f"smartspec_{name}"]

    assert grown('requests_total{outcome="stop"}') == 1
    assert grown("generation_tokens_total") == num_tokens + 1
    assert 0 < grown("prompt_tokens_total") <= num_tokens
    assert grown("verified_tokens_total") == grown("chosen_length_sum") > 0
    assert 0 < grown("accepted_tokens_total") <= grown("verified_tokens_total")
    assert grown("decode_rows_total") == grown("chosen_length_count") > 0
    assert grown("request_ttft_seconds_count") == 1
    for name in ("requests_running", "requests_waiting", "kv_use_ratio"):
        assert after[f"smartspec_{name}"] == 0
    for name in ("request_tpot", "request_e2e", "step", "predicted_step"):
        assert grown(f"{name}_seconds_count") > 0


def test_speculation_and_health(burst_server):
    state = burst_server.http.get("/v1/speculation").json()
    assert (state["policy"], state["drafters"], state["model"]) == (
        "fixed:6",
        ["prompt-lookup"],
        MODEL,
    )
    assert burst_server.http.get("/health").json() == {"status": "ok"}
