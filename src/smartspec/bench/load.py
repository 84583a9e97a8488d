"""The load generator: one asyncio loop sends requests, in a closed loop or at given arrival
times."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import httpx
import numpy as np

from smartspec.bench.client import LoadRequest, Target, send_request
from smartspec.workload.records import RequestRecord

Send = Callable[[LoadRequest], Awaitable[RequestRecord]]
OnRecord = Callable[[RequestRecord], None]


async def run_load(
    target: Target,
    requests: Sequence[LoadRequest],
    on_record: OnRecord,
    *,
    concurrency: int | None = None,
    arrival_seconds: np.ndarray | None = None,
) -> None:
    """Send all requests, handing each record to on_record as its request ends.

    Exactly one of: concurrency (closed loop: that many requests are always under way) or
    arrival_seconds (open loop: float64 [len(requests)], however many are under way). Cancelling
    abandons what is under way; the records handed over so far stay with the caller.
    """
    if (concurrency is None) == (arrival_seconds is None):
        raise ValueError("give either a concurrency or arrival times")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=target.timeout_seconds) as client:
        run_start = time.perf_counter()

        async def send(request: LoadRequest) -> RequestRecord:
            return await send_request(client, target, request, run_start)

        if concurrency is not None:
            await _closed_loop(send, requests, concurrency, on_record)
        else:
            await _open_loop(send, requests, arrival_seconds, on_record)


async def _closed_loop(
    send: Send, requests: Sequence[LoadRequest], concurrency: int, on_record: OnRecord
) -> None:
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}")
    waiting = iter(requests)

    async def worker() -> None:
        for request in waiting:
            on_record(await send(request))

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, len(requests))):
            workers.create_task(worker())


async def _open_loop(
    send: Send, requests: Sequence[LoadRequest], arrival_seconds: np.ndarray, on_record: OnRecord
) -> None:
    start = time.perf_counter()

    async def one(request: LoadRequest) -> None:
        on_record(await send(request))

    async with asyncio.TaskGroup() as under_way:
        for request, arrival in zip(requests, arrival_seconds.tolist(), strict=True):
            await asyncio.sleep(start + arrival - time.perf_counter())
            under_way.create_task(one(request))
