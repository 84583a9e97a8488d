"""Tokens per second by task and number of requests, of policies against off, on the live engine."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import numpy as np
from rich.console import Console
from rich.table import Table

from lib.commands import read_kept
from lib.step_time import requests_of
from smartspec.bench.report import write_json
from smartspec.control.goodput.policy import Goodput
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.build import build_engine
from smartspec.engine.runtime.config import EngineConfig, parse_drafters
from smartspec.workload.prompts import Prompt

CHAINS = "goodput-chains"
WARM_STEPS = 8  # of a cell, before any counts
MIN_STEPS = 10  # of a part
console = Console(width=140)


class Kept:
    """An engine that is kept busy."""

    def __init__(self, name: str, config: EngineConfig):
        self.name, self.engine = name, build_engine(config, report=print)
        policy = self.engine.core.controller.policy
        if name == CHAINS:
            assert isinstance(policy, Goodput)
            policy.settings = replace(policy.settings, widths=(1,))
        self._requests: Iterator[Request]
        self._running: list[Request] = []

    def begin(self, requests: Iterator[Request]) -> None:
        """Drop what runs and go on with these."""
        for request in self._running:
            if request.finish_reason is None:
                self.engine.core.abort(request.request_id)
        self._requests, self._running = requests, []

    def step(self, concurrency: int) -> tuple[int, float] | None:
        """Emitted tokens and seconds of a step; None where it also prefilled."""
        core = self.engine.core
        self._running = [request for request in self._running if request.finish_reason is None]
        while len(self._running) < concurrency:
            self._running.append(next(self._requests))
            core.add_request(self._running[-1])
        began = time.perf_counter()
        output = core.step(time.monotonic())
        seconds = time.perf_counter() - began
        return (
            None
            if output.num_prefill_tokens
            else (sum(len(o.new_token_ids) for o in output.outputs), seconds)
        )


def measure(
    engines: list[Kept], concurrency: int, rows: int, parts: int
) -> dict[str, list[list[float]]]:
    """Of each policy: tokens and seconds of each part."""
    num_steps = max(MIN_STEPS, -(-rows // (concurrency * parts)))
    steps: dict[str, list[tuple[int, float]]] = {each.name: [] for each in engines}
    while min(map(len, steps.values())) < WARM_STEPS + num_steps * parts:
        for each in engines:
            if (counted := each.step(concurrency)) is not None:
                steps[each.name].append(counted)
    return {
        name: [np.sum(part, axis=0).tolist() for part in np.array_split(some[WARM_STEPS:], parts)]
        for name, some in steps.items()
    }


def rates(cell: dict[str, list[list[float]]], name: str) -> np.ndarray:
    """Tokens per second, of all parts together and of each: float [1 + parts]."""
    tokens, seconds = np.array(cell[name]).T
    return np.array([tokens.sum() / seconds.sum(), *(tokens / seconds)])


def table_of(cells: dict[str, dict], names: list[str]) -> Table:
    """A line per cell, the worst of the first policy after off first."""
    table = Table("task", "requests", "off, tokens/s", *names[1:], title="Tokens/s, of off")
    rows = []
    for key, cell in cells.items():
        ratios = [rates(cell, name) / rates(cell, names[0]) for name in names[1:]]
        texts = [
            f"{ratio[0]:.2f} ({ratio[1:].min():.2f}-{ratio[1:].max():.2f})" for ratio in ratios
        ]
        rows.append(
            (ratios[0][0], [*key.rsplit(" ", 1), f"{rates(cell, names[0])[0]:.1f}", *texts])
        )
    for _, row in sorted(rows):
        table.add_row(*row)
    return table


def means_of(cells: dict[str, dict], names: list[str]) -> Table:
    """A line per policy: geometric mean over tasks by number of requests, and the least of all
    cells."""
    levels = sorted({int(key.rsplit(" ", 1)[1]) for key in cells})
    table = Table(
        "policy",
        *map(str, levels),
        "worst cell",
        title="Of off, mean over tasks, by requests at once",
    )
    for name in names[1:]:
        ratios = {
            key: float(rates(cell, name)[0] / rates(cell, names[0])[0])
            for key, cell in cells.items()
        }
        of_level = [
            [ratio for key, ratio in ratios.items() if key.endswith(f" {level}")]
            for level in levels
        ]
        means = [f"{geometric_mean(some):.2f}" for some in of_level]
        table.add_row(name, *means, f"{min(ratios.values()):.2f}")
    return table


def compare(
    settings: dict, by_task: dict[str, list[Prompt]], levels: list[int], folder: Path
) -> None:
    """Measure the cells of these tasks and numbers of requests that are not in the folder, and
    print the tables."""
    path, names = folder / "cells.json", settings["policies"]
    kept = read_kept(path, settings, cells={})
    cells = kept["cells"]
    todo = [(n, task) for n in levels for task in by_task if f"{task} {n}" not in cells]
    engines = [Kept(name, engine_config(name, settings)) for name in names if todo]
    params = SamplingParams(max_tokens=settings["max_tokens"], temperature=settings["temperature"])
    for done, (level, task) in enumerate(todo):
        for each in engines:
            each.begin(requests_of(each.engine, by_task[task], params, first_id=1_000_000 * done))
        cells[f"{task} {level}"] = cell = measure(
            engines, level, settings["rows"], settings["parts"]
        )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, kept)
        of_off = " ".join(
            f"{name} {rates(cell, name)[0] / rates(cell, 'off')[0]:.2f}" for name in names[1:]
        )
        console.print(
            f"{time.strftime('%H:%M:%S')} {done + 1} of {len(todo)}, {task}, {level} at once: "
            f"{of_off}"
        )
    console.print(table_of(cells, names))
    console.print(means_of(cells, names))


def engine_config(name: str, settings: dict) -> EngineConfig:
    policy, drafters = "goodput" if name == CHAINS else name, parse_drafters(settings["drafter"])
    return EngineConfig(
        policy=policy, drafters=drafters, quantization=settings["quantization"], strict=True
    )
