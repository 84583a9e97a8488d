"""The requests of a run and their times: the same for all variants of a round."""

import zlib
from collections.abc import Mapping, Sequence
from itertools import cycle, islice

import numpy as np

from smartspec.bench.client import LoadRequest
from smartspec.bench.load import LoadPlan
from smartspec.report.matrix import CHANGING, MIXED, Cell, Matrix, Run
from smartspec.workload.arrivals import poisson_arrivals, step_arrivals
from smartspec.workload.prompts import Prompt, draw_prompts

Prompts = Mapping[str, Sequence[Prompt]]
LEAST_OPEN = 8  # requests of an open loop


def plan_run(matrix: Matrix, prompts: Prompts, run: Run) -> LoadPlan:
    """prompts: of each workload. A prompt comes twice in a run only if there are more requests than
    prompts; a repetition goes on where the last one ended."""
    load = run.cell.load
    if load.concurrency is not None:
        available = prompts_of(prompts, run.cell)
        count = min(
            matrix.num_requests(load.concurrency), max(len(available), matrix.requests or 0)
        )
        return LoadPlan(
            _requests(matrix, _drawn(available, run, count)), concurrency=load.concurrency
        )
    arrivals = np.random.default_rng([run.repetition, _number(run.cell.name)])
    if load.steps:
        times, steps = step_arrivals([(step.rate, step.seconds) for step in load.steps], arrivals)
        return LoadPlan(_requests(matrix, _of_steps(prompts, run, steps)), arrival_seconds=times)
    count = max(LEAST_OPEN, round(load.rate * matrix.seconds))
    drawn = _drawn(prompts_of(prompts, run.cell), run, count)
    return LoadPlan(
        _requests(matrix, drawn),
        arrival_seconds=poisson_arrivals(load.rate, count, arrivals),
    )


def prompts_of(prompts: Prompts, cell: Cell) -> list[Prompt]:
    """The prompts of the cell's workload; for `mixed` those of all, in a fixed random order."""
    if cell.workload not in (MIXED, CHANGING):
        return list(prompts[cell.workload])
    every = [prompt for some in prompts.values() for prompt in some]
    return draw_prompts(every, len(every), np.random.default_rng(0))


def _drawn(prompts: Sequence[Prompt], run: Run, count: int) -> list[Prompt]:
    """count prompts; all of them have come before one comes again, over repetitions too."""
    order = draw_prompts(prompts, len(prompts), np.random.default_rng(_number(run.cell.workload)))
    begin = run.repetition * count % len(order)
    return list(islice(cycle(order), begin, begin + count))


def _of_steps(prompts: Prompts, run: Run, steps: np.ndarray) -> list[Prompt]:
    """A prompt for each request, of the workload of its step."""
    chosen: list[Prompt] = []
    for number, step in enumerate(run.cell.load.steps):
        available = prompts_of(prompts, Cell(step.workload, run.cell.load))
        chosen += _drawn(available, run, int((steps == number).sum()))
    return chosen


def _requests(matrix: Matrix, prompts: Sequence[Prompt]) -> list[LoadRequest]:
    """Requests with ids that differ: those of the same id are compared."""
    return [
        LoadRequest(f"{prompt.prompt_id} #{i}", prompt.task, prompt.text, matrix.max_tokens, i)
        for i, prompt in enumerate(prompts)
    ]


def _number(text: str) -> int:
    """The same for the same text, in every process."""
    return zlib.crc32(text.encode())
