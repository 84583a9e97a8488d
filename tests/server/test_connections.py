"""Limits of connections: slow and endless requests are closed, and no client is locked out by them."""

import socket
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from fake_server import MODEL, FakeServer, running_server

from smartspec.server.http.connections import LimitedConnection

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\n"


class Quick(LimitedConnection):
    max_connections = 8
    head_seconds = 0.4
    body_seconds = 0.8


@pytest.fixture(scope="module")
def quick_server(tokenizer):
    with running_server(tokenizer, connection=Quick) as fake_server:
        yield fake_server


def connect(server: FakeServer) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=10)


def check_serves(server: FakeServer) -> None:
    assert server.complete(prompt="One two").json()["choices"][0]["text"] == "One two"


def seconds_until_closed(connection: socket.socket) -> float:
    began = time.monotonic()
    while connection.recv(1000):
        pass
    return time.monotonic() - began


@pytest.mark.parametrize("begin", [b"", b"\r\n", HEAD, HEAD + b"Content-Length: 9\r\n\r\n12"])
def test_a_request_that_does_not_end_is_closed(quick_server, begin):
    with connect(quick_server) as connection:
        connection.sendall(begin)
        assert 0.2 < seconds_until_closed(connection) < 5
    check_serves(quick_server)


def test_a_slow_head_is_closed_however_steadily_it_comes(quick_server):
    with connect(quick_server) as connection, pytest.raises(OSError):
        for _ in range(100):
            connection.sendall(b"G")
            time.sleep(0.05)
    check_serves(quick_server)


def test_after_an_answer_the_next_head_has_its_time_as_well(quick_server):
    with connect(quick_server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b'"ok"' in connection.recv(1000)
        connection.sendall(b"\r\n")
        assert seconds_until_closed(connection) < 5


def test_an_answer_may_take_longer_than_a_request(quick_server):
    quick_server.executor.hold()
    with connect(quick_server) as connection:
        body = b'{"prompt": "One two"}'
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"GET /health HTTP/1.1\r\n")
        time.sleep(1.2)
        quick_server.executor.let_go()
        assert b"One two" in connection.recv(4000)


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_a_head_that_is_too_large_is_refused(quick_server, end):
    with connect(quick_server) as connection:
        connection.sendall(HEAD + b"X: " + b"y" * 70_000 + end)
        assert connection.recv(1000).startswith(b"HTTP/1.1 431")
    check_serves(quick_server)


def test_many_half_open_requests_lock_no_client_out(quick_server):
    """A client that connects after them is served. One that connected before may have lost its idle connection."""
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(connect(quick_server)).sendall(HEAD)
        client = stack.enter_context(httpx.Client(base_url=quick_server.url, timeout=10))
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "One two"})
        assert answer.json()["choices"][0]["text"] == "One two"
        assert client.get("/health").status_code == 200
