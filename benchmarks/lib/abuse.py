"""What costs most to refuse, sent to a server, and how long others wait meanwhile."""

import json
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from rich.console import Console
from rich.table import Table

from lib.servers import running, server_command

POLL_SECONDS = 0.005
QUIET_SECONDS = 3.0
LIMIT_MS = 100.0
MEGABYTE = 10**6
USER = {"role": "user", "content": "a"}
OTHER_ADDRESS = ("127.0.0.2", 0)
BODIES: dict[str, tuple[str, Callable[[], dict | bytes]]] = {
    "stop_token_ids: 1M strings": (
        "completions",
        lambda: {"prompt": "a", "stop_token_ids": ["a"] * MEGABYTE},
    ),
    "stop_token_ids: 250k ids": (
        "completions",
        lambda: {"prompt": "a", "stop_token_ids": [5] * 250_000, "n": 128},
    ),
    "prompt: 1M of one letter": ("completions", lambda: {"prompt": ["a"] * MEGABYTE}),
    "prompt: 250k of one letter": ("completions", lambda: {"prompt": ["a"] * 250_000}),
    "prompt: 250k token ids": ("completions", lambda: {"prompt": [5] * 250_000}),
    "prompt: 5 MB of text": ("completions", lambda: {"prompt": "word " * MEGABYTE}),
    "prompt: 60k characters without a space": (
        "completions",
        lambda: {"prompt": "a" * 60_000, "max_tokens": 1},
    ),
    "prompt_logprobs: 31k entries": (
        "completions",
        lambda: {"prompt": [5] * 1500, "prompt_logprobs": 20, "max_tokens": 1},
    ),
    "messages: 200k bad ones": ("chat/completions", lambda: {"messages": [5] * 200_000}),
    "messages: 200k of one letter": ("chat/completions", lambda: {"messages": [USER] * 200_000}),
    "messages: 4,000 of one letter": ("chat/completions", lambda: {"messages": [USER] * 4000}),
    "300k unknown fields": (
        "completions",
        lambda: {"prompt": "a"} | dict.fromkeys(map(str, range(300_000)), 1),
    ),
    "30k unknown fields": (
        "completions",
        lambda: {"prompt": "a"} | dict.fromkeys(map(str, range(30_000)), 1),
    ),
    "2.5M empty lists": ("completions", lambda: b"[" + b"[]," * 2_500_000 + b"1]"),
    "8 MB of quotes": ("completions", lambda: b'""' * 4_000_000),
    "8 MB of digits": (
        "completions",
        lambda: b'{"prompt": "a", "seed": ' + b"1" * 8_000_000 + b"}",
    ),
    "50 MB of spaces": ("completions", lambda: b" " * (50 * MEGABYTE)),
}


class HealthPoll:
    """Calls `/health` of a server while the block runs. longest: seconds of the slowest answer.

    It calls from a process of its own. For every piece of a body that it sends, httpx copies the
    rest, up to 50 MB. No other thread of the sender runs during that time.
    """

    def __init__(self, base_url: str):
        self.longest = 0.0
        self._end, self._other_end = multiprocessing.Pipe()
        self._process = multiprocessing.Process(
            target=_poll_health, args=(base_url, self._other_end), daemon=True
        )

    def __enter__(self) -> "HealthPoll":
        self._process.start()
        # so that an EOFError comes, and no wait for ever, when a call fails
        self._other_end.close()
        self._end.recv()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.send("end")
        self.longest = self._end.recv()
        self._process.join()


def _poll_health(base_url: str, end: Connection) -> None:
    """Says when it has connected; answers the word to end with the seconds of the slowest
    answer."""
    longest = 0.0
    with httpx.Client(base_url=base_url, timeout=120) as client:
        client.get("/health")
        end.send("connected")
        while not end.poll(POLL_SECONDS):
            began = time.perf_counter()
            client.get("/health").raise_for_status()
            longest = max(longest, time.perf_counter() - began)
    end.send(longest)


def report(times: int) -> None:
    """Abuse a server of ours, each body so many times, and print how long others wait."""
    table = Table("abuse", "status", "answer s", "longest health ms")
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "server.log"
        target = stack.enter_context(running(server_command("goodput", None, None), log))
        with HealthPoll(target.base_url) as poll:
            time.sleep(QUIET_SECONDS)
        table.add_row("none: what the machine itself does", "", "", in_ms(poll.longest))
        for name, (endpoint, make) in BODIES.items():
            made = make()
            content = made if isinstance(made, bytes) else json.dumps(made).encode()
            table.add_row(name, *send_body(target.base_url, endpoint, content, times))
        table.add_row("500 half-open requests", *open_halfway(target.base_url, 500))
        first_token = stream_in_a_crowd(target.base_url, 500)
    console = Console()
    console.print(table)
    console.print(
        f"first token of a stream beside 500 requests from another address: {first_token:.2f} s"
    )


def send_body(base_url: str, endpoint: str, content: bytes, times: int) -> tuple[str, str, str]:
    """Status, seconds of the slowest answer, and milliseconds of the slowest health."""
    slowest = 0.0
    with HealthPoll(base_url) as poll, httpx.Client(base_url=base_url, timeout=120) as client:
        for _ in range(times):
            began = time.perf_counter()
            status = client.post(f"/v1/{endpoint}", content=content).status_code
            slowest = max(slowest, time.perf_counter() - began)
    return str(status), f"{slowest:.2f}", in_ms(poll.longest)


def open_halfway(base_url: str, number: int) -> tuple[str, str, str]:
    """Requests whose head never ends: whether they are closed within a minute, after how many
    seconds, and health."""
    address = urlsplit(base_url)
    with ExitStack() as stack, HealthPoll(base_url) as poll:
        began = time.perf_counter()
        connections = [
            socket.create_connection((address.hostname, address.port)) for _ in range(number)
        ]
        for connection in connections:
            stack.enter_context(connection)
            connection.settimeout(max(0.1, 60 - (time.perf_counter() - began)))
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: here\r\n")
        try:
            while connections[-1].recv(1000):
                pass
            state = "closed"
        except TimeoutError:
            state = "open"
        seconds = time.perf_counter() - began
    return state, f"{seconds:.2f}", in_ms(poll.longest)


def stream_in_a_crowd(base_url: str, number: int) -> float:
    """Seconds to the first token of a request that comes just after `number` others from another
    address."""
    address = urlsplit(base_url)
    body = json.dumps({"prompt": "Tell me a story.", "max_tokens": 64}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n".encode()  # noqa: E501
    with ExitStack() as stack:
        for _ in range(number):
            connection = socket.create_connection(
                (address.hostname, address.port), source_address=OTHER_ADDRESS
            )
            stack.enter_context(connection).sendall(head + body)
        time.sleep(1.0)
        began = time.perf_counter()
        call = {"prompt": "Hello", "max_tokens": 16, "stream": True}
        with httpx.stream("POST", f"{base_url}/v1/completions", json=call, timeout=300) as answer:
            next(answer.iter_lines())
        return time.perf_counter() - began


def in_ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f}" + " (!)" * (1000 * seconds > LIMIT_MS)
