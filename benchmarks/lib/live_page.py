"""Throughput of a server while a viewer reads the live page's events, and without."""

import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx

from lib.servers import running, server_command

BODY = {
    "prompt": "The history of the city begins",
    "max_tokens": 100,
    "temperature": 0,
    "ignore_eos": True,
}


def report(rounds: int, clients: int, policy: str) -> None:
    """Print the throughput of every round with and without a viewer, and the median ratio."""
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "server.log"
        target = stack.enter_context(running(server_command(policy, None, None), log))
        tokens_per_second(target.base_url, clients)  # warms up
        ratios = []
        for number in range(rounds):
            pair = {}
            for watched in (number % 2 == 0, number % 2 == 1):
                with ExitStack() as viewer:
                    if watched:
                        viewer.enter_context(Viewer(target.base_url))
                    pair[watched] = tokens_per_second(target.base_url, clients)
            ratios.append(pair[True] / pair[False])
            print(
                f"watched {pair[True]:.1f} tokens/s, not watched {pair[False]:.1f}, ratio "
                f"{ratios[-1]:.4f}"
            )
    spread = f"{min(ratios):.4f} to {max(ratios):.4f}"
    print(f"median ratio {statistics.median(ratios):.4f} ({spread}, {rounds} rounds)")


def tokens_per_second(base_url: str, clients: int) -> float:
    """Of as many equal requests at once as there are clients, twice in a row."""
    with httpx.Client(base_url=base_url, timeout=600) as http, ThreadPoolExecutor(clients) as pool:
        began = time.perf_counter()
        answers = pool.map(
            lambda _: http.post("/v1/completions", json=BODY).json(), range(2 * clients)
        )
        num_tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
        return num_tokens / (time.perf_counter() - began)


class Viewer:
    """Reads the events of the live page while the block runs."""

    def __init__(self, base_url: str):
        self._url = f"{base_url}/v1/speculation/events"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        with httpx.stream("GET", self._url, timeout=60) as answer:
            for _ in answer.iter_lines():
                if self._ended.is_set():
                    return

    def __enter__(self) -> "Viewer":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
