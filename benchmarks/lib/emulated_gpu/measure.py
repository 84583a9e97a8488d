"""Measures a cell."""

import time
from pathlib import Path

import numpy as np

from lib.emulated_gpu.acceptance import (
    Acceptance,
    StatedAcceptance,
    Text,
    TextAcceptance,
    read_texts,
)
from lib.emulated_gpu.cells import Cell
from lib.emulated_gpu.engine import make_engine
from lib.emulated_gpu.load import Client, Load, Window
from lib.vllm_timed import HOOKS, MEANWHILE, Timed

TEXTS = "texts:"


class HostTimes:
    """Seconds of calls of the scheduler, by name: one entry a step. ours: of SmartSpec's hooks in
    these calls, and of what it does while a pass runs; zeros without SmartSpec. Both are timed in
    the same calls, so that the share of ours does not depend on how fast the machine is."""

    def __init__(self, scheduler):
        self.schedule: list[float] = []
        self.update: list[float] = []
        self.ours: dict[str, list[float]] = {"schedule": [], "update": [], "meanwhile": []}
        hooks, meanwhile = Timed(time.perf_counter), Timed(time.perf_counter)
        if speculation := getattr(scheduler, "speculation", None):
            hooks.wrap(speculation, HOOKS)
            meanwhile.wrap(speculation, MEANWHILE)
        for name, seconds, ours, timed in (
            ("schedule", self.schedule, "schedule", hooks),
            ("update_from_output", self.update, "update", hooks),
            ("get_grammar_bitmask", [], "meanwhile", meanwhile),
        ):
            setattr(
                scheduler,
                name,
                self._timed(getattr(scheduler, name), seconds, self.ours[ours], timed),
            )

    def clear(self) -> None:
        for seconds in (self.schedule, self.update, *self.ours.values()):
            seconds.clear()

    @staticmethod
    def _timed(method, seconds: list[float], ours: list[float], timed: Timed):
        def call(*arguments, **options):
            began, before = time.perf_counter(), timed.seconds
            try:
                return method(*arguments, **options)
            finally:
                seconds.append(time.perf_counter() - began)
                ours.append(timed.seconds - before)

        return call


def measure(cell: Cell, folder: Path, table: list | None) -> dict:
    """Figures of a cell, by name. Seconds are those of requests: to the first token, per token
    after it, in all; mean and 99th percentile. idle: share of time in which the GPU waited for the
    host. graphs: share of steps in full graphs. our_..._ms: SmartSpec's part of a step, see
    HostTimes. drafted, verified: tokens per request and step."""
    texts = (
        read_texts(Path(cell.acceptance.removeprefix(TEXTS)))
        if cell.acceptance.startswith(TEXTS)
        else []
    )
    acceptance = _acceptance(cell, texts)
    load = Load.of(cell, texts)
    core, gpu = make_engine(cell, acceptance, folder, table)
    try:
        host, client = HostTimes(core.scheduler), Client(core, load, gpu.clock.rest)
        gpu.began = time.perf_counter()
        client.run(load.num_warm)
        host.clear()
        gpu.log.clear()
        idle = gpu.clock.idle
        window = client.run(load.num_measured)
        seconds = time.perf_counter() - window.began
        return _figures(window, seconds, gpu, gpu.clock.idle - idle, host)
    finally:
        core.shutdown()


def _acceptance(cell: Cell, texts: list[Text]) -> Acceptance:
    """Texts say what the target does. Drafts in them are vLLM's lookups."""
    if not texts:
        return StatedAcceptance(cell.acceptance, cell.longest, cell.seed, cell.found_share)
    return TextAcceptance(texts, cell.longest)


def _figures(window: Window, seconds: float, gpu, idle: float, host: HostTimes) -> dict:
    rows, _, graphs, made, verified, _ = map(np.array, zip(*gpu.log, strict=True))
    first = [request.first - request.came for request in window.ended]
    whole = [request.last - request.came for request in window.ended]
    per_token = [(r.last - r.first) / max(len(r.tokens) - 1, 1) for r in window.ended]
    figures = {"tokens_per_second": window.tokens / seconds, "seconds": seconds, "steps": len(rows)}
    for name, values in (("ttft", first), ("tpot", per_token), ("e2e", whole)):
        figures |= {name: float(np.mean(values)), f"{name}_p99": float(np.percentile(values, 99))}
    return figures | {
        "idle": idle / seconds,
        "schedule_ms": 1e3 * float(np.median(host.schedule)),
        "update_ms": 1e3 * float(np.median(host.update)),
        **{
            f"our_{name}_ms": 1e3 * float(np.median(seconds)) for name, seconds in host.ours.items()
        },
        "requests": float(rows.mean()),
        "drafted": float(made.mean()),
        "verified": float(verified.sum() / rows.sum()),
        "tokens_per_step": window.tokens / float(rows.sum()),
        "graphs": float(graphs.mean()),
    }
