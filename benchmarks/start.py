"""How long does a start of our server take, and how much memory does it hold?

    python benchmarks/start.py time
    python benchmarks/start.py memory --num-requests 2000

The goals are a first token within 3 s, 500 MB plus KV, and no growth.
"""

import asyncio
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import httpx
import typer
from lib.commands import application, run
from lib.servers import ServerCommand, memory_of, running, seconds_to_first_token, server_command
from rich.console import Console
from rich.table import Table

from smartspec.engine.models.default_model import default_model_file

KV_TOKENS = 32 * 1024  # of the server
NUM_REPORTS = 10
POLL_SECONDS = 0.02
app = application(__doc__)


@app.command("time")
def start_time(
    starts: Annotated[int, typer.Option(min=1, help="Starts that are counted.")] = 3,
) -> None:
    """Seconds of a start that finds everything in the cache, to the first token, and resident MB
    after it.

    The first start, which may compile and measure, is not counted.
    """
    command = server_command("goodput", None, None)
    first_tokens = []
    for number in range(starts + 1):
        ready, first_token, resident, peak = start(command)
        counted = "not counted: " if number == 0 else ""
        print(
            f"{counted}ready {ready:.2f} s, first token {first_token:.2f} s, {resident:.0f} MB "
            f"(peak {peak:.0f})"
        )
        first_tokens.append(first_token)
    print(f"median of {starts}: first token {statistics.median(first_tokens[1:]):.2f} s")


def start(command: ServerCommand) -> tuple[float, float, float, float]:
    """Seconds from the start of the process until it is ready and until the first token; resident
    and peak MB then."""
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        with running(command, Path(folder) / "server.log", poll_seconds=POLL_SECONDS) as target:
            ready = time.perf_counter() - began
            first_token = ready + seconds_to_first_token(
                target.base_url, "The capital of France is"
            )
            return ready, first_token, *memory_of(target.base_url)


@app.command()
def memory(
    num_requests: Annotated[int, typer.Option(min=10)] = 2000,
    concurrency: Annotated[int, typer.Option(min=1)] = 32,
    seed: int = 0,
) -> None:
    """Resident memory of the server over many short requests of changing lengths, against weights
    plus KV."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        command = server_command("goodput", None, None)
        command = replace(command, arguments=[*command.arguments, "--kv-tokens", str(KV_TOKENS)])
        with running(command, log) as target:
            rows = asyncio.run(_drive(target.base_url, num_requests, concurrency, seed))
    table = Table("requests", "resident MB", "peak MB")
    for num_done, resident, peak in rows:
        table.add_row(str(num_done), f"{resident:.0f}", f"{peak:.0f}")
    console = Console()
    console.print(table)
    weights, kv = _weights_and_kv()
    console.print(
        f"weights {weights:.0f} MB, KV {kv:.0f} MB; limit 500 MB + KV = {500 + kv:.0f} MB"
    )
    half = rows[len(rows) // 2]
    console.print(f"growth over the second half: {rows[-1][1] - half[1]:+.0f} MB")


async def _drive(
    base_url: str, num_requests: int, concurrency: int, seed: int
) -> list[tuple[int, float, float]]:
    """(requests done, resident MB, peak MB) at the start and after each tenth of the requests."""
    randomness, left = random.Random(seed), iter(range(num_requests))
    async with httpx.AsyncClient(base_url=base_url, timeout=600) as client:
        rows = [(0, *memory_of(base_url))]

        async def worker() -> None:
            for number in left:
                words = " ".join(
                    str(randomness.randrange(1000)) for _ in range(randomness.randrange(1, 60))
                )
                body = {"prompt": f"{number}: {words}", "max_tokens": randomness.randrange(1, 16)}
                (await client.post("/v1/completions", json=body)).raise_for_status()
                if (number + 1) % (num_requests // NUM_REPORTS) == 0:
                    rows.append((number + 1, *memory_of(base_url)))

        await asyncio.gather(*(worker() for _ in range(concurrency)))
    return rows


def _weights_and_kv() -> tuple[float, float]:
    """MB of the default model's weights and of KV_TOKENS tokens of KV (keys and values of every
    layer)."""
    from smartspec.engine.models.gguf_config import config_values
    from smartspec.engine.models.gguf_file import open_gguf

    file = open_gguf(default_model_file())
    config, _ = config_values(file)
    weights = sum(tensor.num_bytes for tensor in file.tensors.values())
    per_token = (
        2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 4
    )
    return weights / 1e6, KV_TOKENS * per_token / 1e6


if __name__ == "__main__":
    run(app)
