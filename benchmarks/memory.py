"""Memory of the server over many requests: peak against weights plus KV, and growth.

    python benchmarks/memory.py --num-requests 2000

Starts our server, sends short requests of changing lengths, and prints its resident memory on the way. The promise is a
peak of at most twice the weights plus the KV memory it was given, and no growth.
"""

import asyncio
import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table
from servers import running, server_command

from smartspec.engine.models.default_model import default_model_file
from smartspec.engine.models.gguf_file import GGUFFile, open_gguf
from smartspec.engine.models.gguf_text import configuration_folder

KV_TOKENS = 32 * 1024  # asked of the server
NUM_REPORTS = 10


def main(
    num_requests: Annotated[int, typer.Option(min=10)] = 2000,
    concurrency: Annotated[int, typer.Option(min=1)] = 32,
    seed: int = 0,
) -> None:
    """Serve many requests and watch the server's resident memory."""
    with tempfile.TemporaryDirectory() as folder:
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
    weights, kv = _weights_and_kv(open_gguf(default_model_file()))
    console.print(f"weights {weights:.0f} MB, KV {kv:.0f} MB; limit 500 MB + KV = {500 + kv:.0f} MB")
    half = rows[len(rows) // 2]
    console.print(f"growth over the second half: {rows[-1][1] - half[1]:+.0f} MB")


async def _drive(base_url: str, num_requests: int, concurrency: int, seed: int) -> list[tuple[int, float, float]]:
    """(requests done, resident MB, peak MB) at the start and after each tenth of the requests."""
    randomness, left = random.Random(seed), iter(range(num_requests))
    async with httpx.AsyncClient(base_url=base_url, timeout=600) as client:
        rows = [(0, *memory_of(base_url))]

        async def worker() -> None:
            for number in left:
                words = " ".join(str(randomness.randrange(1000)) for _ in range(randomness.randrange(1, 60)))
                body = {"prompt": f"{number}: {words}", "max_tokens": randomness.randrange(1, 16)}
                (await client.post("/v1/completions", json=body)).raise_for_status()
                if (number + 1) % (num_requests // NUM_REPORTS) == 0:
                    rows.append((number + 1, *memory_of(base_url)))

        await asyncio.gather(*(worker() for _ in range(concurrency)))
    return rows


def _weights_and_kv(file: GGUFFile) -> tuple[float, float]:
    """MB of the model's weights and of KV_TOKENS tokens of KV (keys and values of every layer)."""
    config = json.loads((configuration_folder(file) / "config.json").read_text())
    weights = sum(tensor.num_bytes for tensor in file.tensors.values())
    per_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 4
    return weights / 1e6, KV_TOKENS * per_token / 1e6


def memory_of(base_url: str) -> tuple[float, float]:
    """Resident and peak memory, in MB, of the process that listens on the port."""
    port = int(base_url.rsplit(":", 1)[1])
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = (status.parent / "cmdline").read_bytes()
            if f"--port\0{port}\0".encode() in command + b"\0":
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
                return tuple(int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
        except OSError:
            continue  # ended meanwhile
    raise ValueError(f"no server process for {base_url}")


if __name__ == "__main__":
    typer.run(main)
