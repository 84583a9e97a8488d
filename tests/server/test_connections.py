"""Connections: slow and endless requests are closed, and no client is locked out by them; HTTP/1.0;
closed sides."""

import json
import socket
import time
from contextlib import ExitStack

import httpx
import pytest
from fake_server import FakeServer, events_of, eventually, running_server, whole_and_streamed

from smartspec.server.http.connections import LimitedConnection

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\n"


class Quick(LimitedConnection):
    max_connections = 8
    head_seconds = 0.4
    body_seconds = 0.8
    half_close_seconds = 60.0


@pytest.fixture(scope="module")
def quick_server(tokenizer):
    with running_server(tokenizer, connection=Quick) as fake_server:
        yield fake_server


def check_serves(server: FakeServer) -> None:
    assert server.completed(prompt="One two") == "One two"


def received(connection: socket.socket) -> bytes:
    """All until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("begin", [b"", b"\r\n", HEAD, HEAD + b"Content-Length: 9\r\n\r\n12"])
def test_a_request_that_does_not_end_is_closed(quick_server, begin):
    began = time.monotonic()
    with quick_server.connect() as connection:
        connection.sendall(begin)
        received(connection)
    assert time.monotonic() - began > 0.2
    check_serves(quick_server)


def test_a_slow_head_is_closed_however_steadily_it_comes(quick_server):
    with quick_server.connect() as connection, pytest.raises(OSError):
        for _ in range(100):
            connection.sendall(b"G")
            time.sleep(0.05)
    check_serves(quick_server)


def test_after_an_answer_the_next_head_has_its_time_as_well(quick_server):
    with quick_server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b'"ok"' in connection.recv(1000)
        connection.sendall(b"\r\n")
        received(connection)


def test_an_answer_may_take_longer_than_a_request(quick_server):
    quick_server.executor.hold()
    with quick_server.connect() as connection:
        body = b'{"prompt": "One two"}'
        connection.sendall(
            HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"GET /health HTTP/1.1\r\n"
        )
        time.sleep(1.2)
        quick_server.executor.let_go()
        assert b"One two" in connection.recv(4000)


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_a_head_that_is_too_large_is_refused(quick_server, end):
    with quick_server.connect() as connection:
        connection.sendall(HEAD + b"X: " + b"y" * 70_000 + end)
        assert connection.recv(1000).startswith(b"HTTP/1.1 431")
    check_serves(quick_server)


def test_many_half_open_requests_lock_no_client_out(quick_server):
    """A client that connects after them is served. One that connected before may have lost its idle
    connection."""
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(quick_server.connect()).sendall(HEAD)
        client = stack.enter_context(httpx.Client(base_url=quick_server.url, timeout=10))
        answer = client.post("/v1/completions", json={"prompt": "One two"})
        assert answer.json()["choices"][0]["text"] == "One two"
        assert client.get("/health").status_code == 200


def exchange(server: FakeServer, data: bytes, closes: bool = False) -> bytes:
    """What is answered until the server closes the connection. closes: the client closes its side
    first."""
    with server.connect() as connection:
        connection.sendall(data)
        if closes:
            connection.shutdown(socket.SHUT_WR)
        return received(connection)


def post(version: str = "1.1", head: str = "", **body) -> bytes:
    text = json.dumps(body).encode()
    lines = (
        f"POST /v1/completions HTTP/{version}\r\nHost: here\r\nContent-Length: "
        f"{len(text)}\r\n{head}\r\n"
    )
    return lines.encode() + text


def texts(events: bytes) -> str:
    assert events.endswith(b"data: [DONE]\n\n")
    return "".join(event["choices"][0]["text"] for event in events_of(events.decode()))


@pytest.mark.parametrize("head", ["", "Connection: keep-alive\r\n", "Expect: 100-continue\r\n"])
@whole_and_streamed
def test_http_1_0_gets_no_chunks(quick_server, stream, head):
    """RFC 9112, 6.1: no Transfer-Encoding in an answer to HTTP/1.0. The answer ends with the
    connection."""
    answer = exchange(quick_server, post("1.0", head, prompt="One two", stream=stream))
    first, _, body = answer.partition(b"\r\n\r\n")
    assert (
        first.startswith(b"HTTP/1.1 200")
        and b"transfer-encoding" not in first
        and b"connection: close" in first
    )
    assert (b"content-length" in first) != stream
    assert (texts(body) if stream else json.loads(body)["choices"][0]["text"]) == "One two"


H2C = (
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: "
    "AAEAAEAAAAIAAAAAAAMAAAAA\r\n"
)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("piece", [1, 300, 10**6])
@pytest.mark.parametrize("offer", [H2C, "upgrade: websocket\r\nConnection: upgrade\r\n"])
def test_an_offer_of_another_protocol_is_ignored(server, offer, piece, version):
    """RFC 9110, 7.8: the request is answered, body and all, however it is cut, and so is what comes
    after it."""
    requests = [post(version, offer, prompt="One two")]
    if version == "1.1":
        chunked = b"13\r\n" + b'{"prompt": "three"}' + b"\r\n0\r\n\r\n"
        requests.append(
            HEAD + b"Transfer-Encoding: chunked\r\n" + offer.encode() + b"\r\n" + chunked
        )
        requests.append(b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    data = b"".join(requests)
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), piece):
            connection.sendall(data[at : at + piece])
        answer = received(connection)
    assert answer.count(b"HTTP/1.1 200") == len(requests) and b'"One two"' in answer
    assert version == "1.0" or (b'"three"' in answer and answer.endswith(b'{"status":"ok"}'))


@pytest.mark.parametrize("line", ["GET /health", "HEAD /health", "GET /nothing"])
def test_http_1_0_gets_whole_answers(quick_server, line):
    first, _, body = exchange(quick_server, f"{line} HTTP/1.0\r\n\r\n".encode()).partition(
        b"\r\n\r\n"
    )
    assert b"content-length" in first and b"transfer-encoding" not in first
    assert (body == b"") == line.startswith("HEAD")


def test_streams_are_not_gathered_by_proxies(quick_server):
    answer = quick_server.complete(prompt="One two", stream=True)
    assert (
        answer.headers["x-accel-buffering"] == "no"
        and answer.headers["transfer-encoding"] == "chunked"
    )
    assert "x-accel-buffering" not in quick_server.complete(prompt="One two").headers


def answer_after_closing(server: FakeServer, data: bytes) -> bytes:
    """To a client that has closed its side before there is an answer."""
    server.executor.hold()
    with server.connect() as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        eventually(lambda: server.core.num_running == 1)
        server.executor.let_go()
        return received(connection)


@whole_and_streamed
def test_a_client_that_closes_its_side_after_the_request_gets_its_answer(quick_server, stream):
    answer = answer_after_closing(quick_server, post(prompt="One two", stream=stream))
    assert b"One" in answer and answer.endswith(b"0\r\n\r\n" if stream else b"}")
    assert b"connection: close" in answer


def test_all_requests_before_a_closed_side_are_answered(quick_server):
    requests = post(prompt="One") + post(prompt="two") + post(prompt="three")
    answers = answer_after_closing(quick_server, requests)
    assert answers.count(b"HTTP/1.1 200") == 3 and answers.count(b"connection: close") == 1
    assert answers.index(b'"One"') < answers.index(b'"two"') < answers.index(b'"three"')


@pytest.mark.parametrize("data", [b"", b"GET /hea", HEAD + b"Content-Length: 9\r\n\r\n12"])
def test_a_side_that_closes_before_the_request_ends_the_connection(quick_server, data):
    assert exchange(quick_server, data, closes=True) == b""
    check_serves(quick_server)


def test_a_client_that_has_left_is_noticed_when_something_is_written(quick_server):
    """Closed at once, both sides of it."""
    quick_server.executor.hold()
    with quick_server.connect() as connection:
        connection.sendall(
            post(prompt="One two three", max_tokens=400, ignore_eos=True, stream=True)
        )
        eventually(lambda: quick_server.core.num_running == 1)
    num_steps = quick_server.executor.num_steps
    quick_server.executor.let_go()
    eventually(lambda: quick_server.engine.num_requests == 0)
    assert quick_server.executor.num_steps < num_steps + 300
