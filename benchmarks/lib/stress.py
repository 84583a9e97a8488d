"""A server under fuzzed requests, clients that leave, three times its capacity, and long load."""

import asyncio
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

from lib.commands import read_kept
from lib.fuzz_bodies import random_request
from lib.servers import memory_of, running, server_command
from smartspec.bench.report import write_json

MAX_BATCH, MAX_QUEUE = 8, 16
OPTIONS = [
    "--max-batch",
    f"{MAX_BATCH}",
    "--max-queue",
    f"{MAX_QUEUE}",
    "--max-queue-per-client",
    f"{MAX_QUEUE}",
]
MAX_GROWTH = 1.05  # of memory, after the first tenth
CAPACITY_SECONDS = 20.0
OVERLOAD, SOAK_LOAD = 3.0, 0.8  # of the capacity
LONGEST_WAIT = 600.0


@dataclass(frozen=True)
class Load:
    """How much of each part."""

    fuzzed: int
    cancelled: int
    overload_seconds: float
    soak_seconds: float


def broken_promises(load: Load, policy: str, seed: int, record: Path | None) -> list[str]:
    """Try a server of ours. record: a file that keeps what is done. ValueError if that is of
    another run."""
    settings = [*astuple(load), policy, seed]
    command = server_command(policy, None, None)
    command = replace(command, arguments=[*command.arguments, *OPTIONS])
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "server.log"
        target = stack.enter_context(running(command, log))
        trial = Trial(target.base_url, Record(record, settings), seed)
        asyncio.run(trial.run(load))
    return trial.broken


@dataclass
class Part:
    """What is known of a part. num_tenths: that are done. memory: MB after each, a list for every
    process there was."""

    num_tenths: int = 0
    outcomes: Counter = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    memory: list[list[float]] = field(default_factory=list)
    left_over: list[float] = field(default_factory=list)


class Record:
    """The parts, in a file if there is one. ValueError where that is of another run."""

    def __init__(self, path: Path | None, settings: list):
        self._path, self._settings = path, settings
        kept = read_kept(path, settings, capacity=None, parts={})
        self.capacity: float | None = kept["capacity"]
        parts = {
            name: Part(**part | {"outcomes": Counter(part["outcomes"])})
            for name, part in kept["parts"].items()
        }
        self.parts: defaultdict[str, Part] = defaultdict(Part, parts)

    def save(self) -> None:
        if self._path is not None:
            parts = {name: vars(part) for name, part in self.parts.items()}
            write_json(
                self._path, {"settings": self._settings, "capacity": self.capacity, "parts": parts}
            )


class Trial:
    """All parts, one after the other. broken: promises that did not hold."""

    def __init__(self, base_url: str, record: Record, seed: int):
        self.broken: list[str] = []
        self._base_url = base_url
        self._record = record
        self._seed = seed
        self._chance = random.Random(seed)
        self._console = Console()
        self._client: httpx.AsyncClient

    async def run(self, load: Load) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self._base_url, timeout=LONGEST_WAIT, limits=limits
        ) as self._client:
            await self._part(
                "fuzzed requests", partial(self._repeat, load.fuzzed, self._send_fuzzed)
            )
            await self._part(
                "cancelled streams", partial(self._repeat, load.cancelled, self._leave_stream)
            )
            if self._record.capacity is None:
                self._record.capacity = await self._capacity()
                self._record.save()
            capacity = self._record.capacity
            self._console.print(f"capacity: {capacity:.2f} requests/s")
            until_full = (MAX_BATCH + MAX_QUEUE) / ((OVERLOAD - 1) * capacity)
            seconds = max(load.overload_seconds, 3 * until_full)
            await self._part(
                "overload", partial(self._load, OVERLOAD * capacity, seconds), num_tenths=1
            )
            await self._part("soak", partial(self._load, SOAK_LOAD * capacity, load.soak_seconds))
        self._print_summary()

    async def _part(
        self, name: str, tenth: Callable[[Part, int, int], Awaitable[None]], num_tenths: int = 10
    ) -> None:
        """Do what is left of it, tenth by tenth, and report."""
        part = self._record.parts[name]
        if part.num_tenths < num_tenths:
            part.memory.append([])
        while part.num_tenths < num_tenths:
            self._chance = random.Random(f"{self._seed} {name} {part.num_tenths}")
            await tenth(part, part.num_tenths, num_tenths)
            part.memory[-1].append(memory_of(self._base_url)[0])
            part.num_tenths += 1
            part.left_over = list(await self._state())
            self._record.save()
            self._check(not any(part.left_over), f"{name}: something is left in the engine")
        self._report(name, part)

    async def _repeat(
        self,
        count: int,
        send: Callable[[], Awaitable[str]],
        part: Part,
        number: int,
        num_tenths: int,
    ) -> None:
        """Send a tenth of count requests, MAX_BATCH at once."""
        left = iter(range(count * number // num_tenths, count * (number + 1) // num_tenths))

        async def worker() -> None:
            for _ in left:
                part.outcomes[await send()] += 1

        await asyncio.gather(*(worker() for _ in range(MAX_BATCH)))

    async def _send_fuzzed(self) -> str:
        path, data = random_request(self._chance)
        return await self._outcome(self._client.post(path, content=data))

    async def _leave_stream(self) -> str:
        """Closed before the answer begins, or within it."""
        patience = self._chance.expovariate(2.0)
        body = {"prompt": self._prompt(), "max_tokens": 64, "ignore_eos": True, "stream": True}
        try:
            async with (
                asyncio.timeout(patience),
                self._client.stream("POST", "/v1/completions", json=body) as answer,
            ):
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

    async def _load(
        self, rate: float, seconds: float, part: Part, number: int, num_tenths: int
    ) -> None:
        """Poisson arrivals for a tenth of seconds."""

        async def one() -> None:
            began = time.perf_counter()
            outcome = await self._complete()
            part.outcomes[outcome] += 1
            if outcome == "200":
                part.times.append(round(time.perf_counter() - began, 3))

        ends = time.perf_counter() + seconds / num_tenths
        async with asyncio.TaskGroup() as under_way:
            while time.perf_counter() < ends:
                under_way.create_task(one())
                await asyncio.sleep(self._chance.expovariate(rate))

    async def _complete(self) -> str:
        body = {
            "prompt": self._prompt(),
            "max_tokens": self._chance.randrange(8, 33),
            "ignore_eos": True,
        }
        return await self._outcome(self._client.post("/v1/completions", json=body))

    def _prompt(self) -> str:
        return " ".join(
            str(self._chance.randrange(1000)) for _ in range(self._chance.randrange(1, 40))
        )

    async def _outcome(self, answer: Awaitable[httpx.Response]) -> str:
        try:
            return str((await answer).status_code)
        except httpx.TransportError as error:
            return type(error).__name__

    def _report(self, name: str, part: Part) -> None:
        table = Table("outcome", "requests", title=name, title_justify="left")
        for outcome, count in sorted(part.outcomes.items()):
            table.add_row(outcome, str(count))
        self._console.print(table)
        for memory in part.memory:
            self._console.print(
                f"  memory MB by tenths: {' '.join(f'{value:.0f}' for value in memory)}"
            )
            self._check(memory[-1] < MAX_GROWTH * memory[0], f"{name}: memory grew")
        running, waiting, kv = part.left_over
        self._console.print(
            f"  left in the engine: {running:.0f} running, {waiting:.0f} waiting, {kv:.0%} of KV"
        )
        bad = [
            outcome
            for outcome in part.outcomes
            if outcome not in ("503", "left") and outcome[0] not in "234"
        ]
        self._check(not bad, f"{name}: {', '.join(bad)}")
        if part.times:
            p50, p99 = np.percentile(part.times, [50, 99])
            bound = 2 * (MAX_BATCH + MAX_QUEUE) / self._record.capacity
            self._console.print(
                f"  admitted: p50 {p50:.2f} s, p99 {p99:.2f} s; twice a full queue's time: "
                f"{bound:.2f} s"
            )
            self._check(p99 <= bound, f"{name}: p99 {p99:.2f} s")
        if name == "overload":
            self._check(bool(part.outcomes["429"]), "overload: nothing was answered 429")

    def _print_summary(self) -> None:
        """For docs/results/reliability.md."""
        print(
            "| part | requests | answers | p50, p99 of admitted, s | MB after the first tenth, at "
            "the end |"
        )
        print("| --- | --- | --- | --- | --- |")
        for name, part in self._record.parts.items():
            answers = ", ".join(
                f"{count} x {outcome}" for outcome, count in sorted(part.outcomes.items())
            )
            times = (
                ", ".join(f"{value:.2f}" for value in np.percentile(part.times, [50, 99]))
                if part.times
                else ""
            )
            memory = f"{part.memory[0][0]:.0f}, {part.memory[-1][-1]:.0f}"
            print(f"| {name} | {part.outcomes.total()} | {answers} | {times} | {memory} |")
        self._console.print(
            "broken: " + "; ".join(self.broken) if self.broken else "all promises held"
        )

    async def _state(self) -> tuple[float, ...]:
        """Running, waiting and KV use, once the engine has noticed who left."""
        names = ("requests_running", "requests_waiting", "kv_use_ratio")
        for _ in range(100):
            text = (await self._client.get("/metrics")).text
            lines = dict(
                line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("smartspec_")
            )
            state = tuple(float(lines[f"smartspec_{name}"]) for name in names)
            if not any(state):
                break
            await asyncio.sleep(0.1)
        return state

    def _check(self, holds: bool, promise: str) -> None:
        if not holds:
            self.broken.append(promise)
