"""What a server withstands: fuzzed requests, clients that leave, three times its capacity, hours of load.

    python benchmarks/reliability.py
    python benchmarks/reliability.py --fuzzed 100000 --cancelled 10000 --soak-seconds 7200

Starts our server and prints a table for each part. The promises: no answer of status 5xx but 503, nothing left in the
engine when all is answered, memory flat after the first tenth, and under overload 429 with bounded times for the rest.
"""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import httpx
import numpy as np
import typer
from fuzz_bodies import random_request
from memory import memory_of
from rich.console import Console
from rich.table import Table
from servers import running, server_command

MAX_BATCH, MAX_QUEUE = 8, 16
OPTIONS = ["--max-batch", f"{MAX_BATCH}", "--max-queue", f"{MAX_QUEUE}", "--max-queue-per-client", f"{MAX_QUEUE}"]
NUM_REPORTS = 10
MAX_GROWTH = 1.05  # of memory, behind the first tenth
CAPACITY_SECONDS = 20.0
OVERLOAD, SOAK_LOAD = 3.0, 0.8  # of the capacity
LONGEST_WAIT = 600.0


def main(
    fuzzed: Annotated[int, typer.Option(min=10, help="Fuzzed requests.")] = 2000,
    cancelled: Annotated[int, typer.Option(min=10, help="Streams that are left at a random moment.")] = 200,
    overload_seconds: Annotated[
        float, typer.Option(min=1, help="At three times the capacity; at least until the queue is full.")
    ] = 30.0,
    soak_seconds: Annotated[float, typer.Option(min=1, help="At 80 % of the capacity.")] = 60.0,
    policy: Annotated[str, typer.Option(help="Of the server.")] = "goodput",
    seed: int = 0,
) -> None:
    """Try a server of ours, and end with status 1 if a promise is broken."""
    command = server_command(policy, None, None)
    command = replace(command, arguments=[*command.arguments, *OPTIONS])
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "server.log"
        target = stack.enter_context(running(command, log))
        trial = Trial(target.base_url, random.Random(seed))
        asyncio.run(trial.run(fuzzed, cancelled, overload_seconds, soak_seconds))
    if trial.broken:
        raise typer.Exit(1)


class Trial:
    """All parts, one after the other. broken: promises that did not hold."""

    def __init__(self, base_url: str, chance: random.Random):
        self.broken: list[str] = []
        self._base_url = base_url
        self._chance = chance
        self._console = Console()
        self._client: httpx.AsyncClient

    async def run(self, fuzzed: int, cancelled: int, overload_seconds: float, soak_seconds: float) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._base_url, timeout=LONGEST_WAIT, limits=limits) as self._client:
            await self._repeat("fuzzed requests", fuzzed, self._send_fuzzed, MAX_BATCH)
            await self._repeat("cancelled streams", cancelled, self._leave_stream, MAX_BATCH)
            capacity = await self._capacity()
            self._console.print(f"capacity: {capacity:.2f} requests/s")
            until_full = (MAX_BATCH + MAX_QUEUE) / ((OVERLOAD - 1) * capacity)
            await self._load("overload", OVERLOAD * capacity, max(overload_seconds, 3 * until_full), capacity)
            await self._load("soak", SOAK_LOAD * capacity, soak_seconds, capacity)
        self._console.print("broken: " + "; ".join(self.broken) if self.broken else "all promises held")

    async def _repeat(self, name: str, count: int, send: Callable[[], Awaitable[str]], concurrency: int) -> None:
        """Send count requests, so many at once, and report outcomes and memory after each tenth."""
        outcomes: Counter[str] = Counter()
        memory = []
        for done in range(0, count, max(1, count // NUM_REPORTS)):
            left = iter(range(min(max(1, count // NUM_REPORTS), count - done)))

            async def worker(left=left) -> None:
                for _ in left:
                    outcomes[await send()] += 1

            await asyncio.gather(*(worker() for _ in range(concurrency)))
            memory.append(memory_of(self._base_url)[0])
        await self._report(name, outcomes, memory)

    async def _send_fuzzed(self) -> str:
        path, data = random_request(self._chance)
        return await self._outcome(self._client.post(path, content=data))

    async def _leave_stream(self) -> str:
        """Closed before the answer begins, or within it."""
        patience = self._chance.expovariate(2.0)
        body = {"prompt": self._prompt(), "max_tokens": 64, "ignore_eos": True, "stream": True}
        try:
            async with asyncio.timeout(patience), self._client.stream("POST", "/v1/completions", json=body) as answer:
                async for _ in answer.aiter_bytes():
                    pass
            return str(answer.status_code)
        except TimeoutError:
            return "left"
        except httpx.TransportError as error:
            return type(error).__name__

    async def _capacity(self) -> float:
        """Requests per second of a full batch and no more."""
        ends, done = time.perf_counter() + CAPACITY_SECONDS, 0
        began = time.perf_counter()

        async def worker() -> None:
            nonlocal done
            while time.perf_counter() < ends:
                await self._complete()
                done += 1

        await asyncio.gather(*(worker() for _ in range(MAX_BATCH)))
        return done / (time.perf_counter() - began)

    async def _load(self, name: str, rate: float, seconds: float, capacity: float) -> None:
        """Poisson arrivals; times of what was admitted, and memory after each tenth."""
        outcomes, times, memory = Counter(), [], []

        async def one() -> None:
            began = time.perf_counter()
            outcome = await self._complete()
            outcomes[outcome] += 1
            if outcome == "200":
                times.append(time.perf_counter() - began)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as under_way:
            while (now := time.perf_counter() - began) < seconds:
                under_way.create_task(one())
                if now > len(memory) * seconds / NUM_REPORTS:
                    memory.append(memory_of(self._base_url)[0])
                await asyncio.sleep(self._chance.expovariate(rate))
        await self._report(name, outcomes, memory)
        p50, p99 = np.percentile(times, [50, 99])
        bound = 2 * (MAX_BATCH + MAX_QUEUE) / capacity
        self._console.print(f"  admitted: p50 {p50:.2f} s, p99 {p99:.2f} s; twice a full queue's time is {bound:.2f} s")
        self._check(p99 <= bound, f"{name}: p99 {p99:.2f} s")
        if name == "overload":
            self._check(bool(outcomes["429"]), "overload: nothing was answered 429")

    async def _complete(self) -> str:
        body = {"prompt": self._prompt(), "max_tokens": self._chance.randrange(8, 33), "ignore_eos": True}
        return await self._outcome(self._client.post("/v1/completions", json=body))

    def _prompt(self) -> str:
        return " ".join(str(self._chance.randrange(1000)) for _ in range(self._chance.randrange(1, 40)))

    async def _outcome(self, answer: Awaitable[httpx.Response]) -> str:
        try:
            return str((await answer).status_code)
        except httpx.TransportError as error:
            return type(error).__name__

    async def _report(self, name: str, outcomes: Counter, memory: list[float]) -> None:
        running, waiting, kv = await self._state()
        table = Table("outcome", "requests", title=name, title_justify="left")
        for outcome, count in sorted(outcomes.items()):
            table.add_row(outcome, str(count))
        self._console.print(table)
        self._console.print(f"  memory MB by tenths: {' '.join(f'{value:.0f}' for value in memory)}")
        self._console.print(f"  left in the engine: {running:.0f} running, {waiting:.0f} waiting, {kv:.0%} of KV")
        bad = [outcome for outcome in outcomes if outcome not in ("503", "left") and outcome[0] not in "234"]
        self._check(not bad, f"{name}: {', '.join(bad)}")
        self._check(memory[-1] < MAX_GROWTH * memory[0], f"{name}: memory grew")
        self._check(running == waiting == kv == 0, f"{name}: something is left in the engine")

    async def _state(self) -> tuple[float, ...]:
        """Running, waiting and KV use, once the engine has noticed who left."""
        names = ("requests_running", "requests_waiting", "kv_use_ratio")
        for _ in range(100):
            text = (await self._client.get("/metrics")).text
            lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("smartspec_"))
            state = tuple(float(lines[f"smartspec_{name}"]) for name in names)
            if not any(state):
                break
            await asyncio.sleep(0.1)
        return state

    def _check(self, holds: bool, promise: str) -> None:
        if not holds:
            self.broken.append(promise)


if __name__ == "__main__":
    typer.run(main)
