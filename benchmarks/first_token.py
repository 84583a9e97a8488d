"""Time to the first token of a long prompt, ours and llama.cpp's, on the same file.

    pip install xllamacpp
    python benchmarks/first_token.py

Prompts are random tokens, so no cache helps. Servers run one at a time, in turn forwards and backwards.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import httpx
import numpy as np
import typer
from servers import running, server_command

SMALLEST_ID, LARGEST_ID = 100, 49_000  # neither special tokens nor beyond the default model's vocabulary


def main(
    servers: Annotated[str, typer.Option(help="Names as in servers.py, separated by commas.")] = "llama.cpp,goodput",
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 512,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each server.")] = 2,
    requests: Annotated[int, typer.Option(min=1, help="Of each start, behind one that is not counted.")] = 8,
    seed: int = 0,
) -> None:
    """Print the median time to the first token of each server and start."""
    names = servers.split(",")
    for number in range(rounds):
        chance = np.random.default_rng([seed, number])
        prompts = chance.integers(SMALLEST_ID, LARGEST_ID, (requests + 1, prompt_tokens)).tolist()
        for name in names if number % 2 == 0 else reversed(names):
            times = first_token_times(name, prompts)[1:]
            spread = f"{1000 * min(times):.0f} to {1000 * max(times):.0f}"
            print(f"{name}, {prompt_tokens} tokens: {1000 * statistics.median(times):.0f} ms ({spread})", flush=True)


def first_token_times(name: str, prompts: list[list[int]]) -> list[float]:
    """Seconds of each prompt, one after the other, at a server of its own."""
    command = server_command(name, None, None)
    with tempfile.TemporaryDirectory() as folder, running(command, Path(folder) / "server.log") as target:
        return [seconds_to_first_token(target.base_url, prompt) for prompt in prompts]


def seconds_to_first_token(base_url: str, prompt: list[int]) -> float:
    """Of a streamed request that asks for one token."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    began = time.perf_counter()
    with httpx.stream("POST", f"{base_url}/v1/completions", json=body, timeout=120) as answer:
        answer.raise_for_status()
        next(answer.iter_lines())
        return time.perf_counter() - began


if __name__ == "__main__":
    typer.run(main)
