"""How long a start takes that finds everything in the cache: to the first token of the first request, and the memory.

    python benchmarks/start_time.py

Starts the default server several times; the first start, which may compile and measure, is not counted. The goals are
a first token within 3 s and 500 MB plus KV.
"""

import os
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated

import httpx
import typer
from memory import memory_of
from servers import ServerCommand, server_command, stop, wait_until_healthy

POLL_SECONDS = 0.02
BODY = {"prompt": "The capital of France is", "max_tokens": 1, "stream": True}


def main(starts: Annotated[int, typer.Option(min=1, help="Starts that are counted.")] = 3) -> None:
    """Print seconds to readiness and to the first token, and resident MB after it."""
    command = server_command("goodput", None, None)
    first_tokens = []
    for number in range(starts + 1):
        ready, first_token, resident, peak = start(command)
        counted = "not counted: " if number == 0 else ""
        print(f"{counted}ready {ready:.2f} s, first token {first_token:.2f} s, {resident:.0f} MB (peak {peak:.0f})")
        first_tokens.append(first_token)
    print(f"median of {starts}: first token {statistics.median(first_tokens[1:]):.2f} s")


def start(command: ServerCommand) -> tuple[float, float, float, float]:
    """Seconds from the start of the process until it is ready and until the first token; resident and peak MB then."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base_url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "server.log").open("wb") as log:
        arguments = [argument.format(port=port, slots=1) for argument in command.arguments]
        began = time.perf_counter()
        process = subprocess.Popen(
            arguments, stdout=log, stderr=log, start_new_session=True, env=os.environ | command.environment
        )
        try:
            wait_until_healthy(process, base_url, Path(log.name), POLL_SECONDS)
            ready = time.perf_counter() - began
            with httpx.stream("POST", f"{base_url}/v1/completions", json=BODY, timeout=60) as answer:
                next(answer.iter_lines())
            return ready, time.perf_counter() - began, *memory_of(base_url)
        finally:
            stop(process)


if __name__ == "__main__":
    typer.run(main)
