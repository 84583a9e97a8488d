"""The load generator: one asyncio loop sends requests, in a closed loop or at given arrival
times."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

import httpx
import numpy as np

from smartspec.bench.client import LoadRequest, Target, send_request
from smartspec.workload.records import RequestRecord

Send = Callable[[LoadRequest], Coroutine[None, None, None]]
OnRecord = Callable[[RequestRecord], None]


@dataclass(frozen=True)
class LoadPlan:
    """Requests and either a concurrency (closed loop) or arrival times, float64 [len(requests)]
    (open loop)."""

    requests: Sequence[LoadRequest]
    concurrency: int | None = None
    arrival_seconds: np.ndarray | None = None


async def run_load(target: Target, plan: LoadPlan, on_record: OnRecord) -> None:
    """Send all requests, handing each record to on_record as its request ends.

    In a closed loop `concurrency` requests are always under way, in an open loop however many.
    Cancelling abandons what is under way; the records handed over so far stay with the caller.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=target.timeout_seconds) as client:
        run_start = time.perf_counter()

        async def send(request: LoadRequest) -> None:
            on_record(await send_request(client, target, request, run_start))

        if plan.arrival_seconds is None:
            await _closed_loop(send, plan.requests, plan.concurrency)
        else:
            await _open_loop(send, plan.requests, plan.arrival_seconds)


async def _closed_loop(send: Send, requests: Sequence[LoadRequest], concurrency: int) -> None:
    waiting = iter(requests)

    async def worker() -> None:
        for request in waiting:
            await send(request)

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, len(requests))):
            workers.create_task(worker())


async def _open_loop(
    send: Send, requests: Sequence[LoadRequest], arrival_seconds: np.ndarray
) -> None:
    start = time.perf_counter()
    async with asyncio.TaskGroup() as under_way:
        for request, arrival in zip(requests, arrival_seconds.tolist(), strict=True):
            await asyncio.sleep(start + arrival - time.perf_counter())
            under_way.create_task(send(request))
