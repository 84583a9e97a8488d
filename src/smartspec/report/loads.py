"""The requests of a run and their times: the same for all variants of a round."""

import zlib
from collections.abc import Mapping, Sequence
from itertools import cycle, islice

import numpy as np

from smartspec.bench.client import LoadRequest
from smartspec.bench.run import LoadPlan
from smartspec.report.matrix import CHANGING, MIXED, Cell, Matrix, Run
from smartspec.workload.arrivals import gamma_arrivals, read_trace, step_arrivals
from smartspec.workload.prompts import Prompt, draw_prompts, match_by_length

Prompts = Mapping[str, Sequence[Prompt]]
LEAST_OPEN = 8  # requests of an open loop


def plan_run(matrix: Matrix, prompts: Prompts, run: Run) -> LoadPlan:
    """prompts: of each workload. A prompt comes twice in a run only if there are more requests than
    prompts; a repetition goes on where the last one ended. Raises ValueError for a trace that
    cannot be read."""
    load = run.cell.load
    if load.concurrency is not None:
        available = prompts_of(prompts, run.cell)
        count = min(
            matrix.num_requests(load.concurrency), max(len(available), matrix.requests or 0)
        )
        return LoadPlan(
            _requests(matrix, _drawn(matrix, available, run, count)), concurrency=load.concurrency
        )
    arrivals = np.random.default_rng([matrix.seed, run.repetition, _number(run.cell.name)])
    if load.steps:
        times, steps = step_arrivals([(step.rate, step.seconds) for step in load.steps], arrivals)
        return LoadPlan(
            _requests(matrix, _of_steps(matrix, prompts, run, steps)), arrival_seconds=times
        )
    if load.trace is not None:
        return _trace_plan(matrix, prompts, run)
    count = max(LEAST_OPEN, round(load.rate * matrix.seconds))
    drawn = _drawn(matrix, prompts_of(prompts, run.cell), run, count)
    return LoadPlan(
        _requests(matrix, drawn),
        arrival_seconds=gamma_arrivals(load.rate, count, load.cv, arrivals),
    )


def prompts_of(prompts: Prompts, cell: Cell) -> list[Prompt]:
    """The prompts of the cell's workload; for `mixed` those of all, in a fixed random order."""
    if cell.workload not in (MIXED, CHANGING):
        return list(prompts[cell.workload])
    every = [prompt for some in prompts.values() for prompt in some]
    return draw_prompts(every, len(every), np.random.default_rng(0))


def _drawn(matrix: Matrix, prompts: Sequence[Prompt], run: Run, count: int) -> list[Prompt]:
    """count prompts; all of them have come before one comes again, over repetitions too."""
    order = draw_prompts(
        prompts, len(prompts), np.random.default_rng([matrix.seed, _number(run.cell.workload)])
    )
    begin = run.repetition * count % len(order)
    return list(islice(cycle(order), begin, begin + count))


def _of_steps(matrix: Matrix, prompts: Prompts, run: Run, steps: np.ndarray) -> list[Prompt]:
    """A prompt for each request, of the workload of its step."""
    chosen: list[Prompt] = []
    for number, step in enumerate(run.cell.load.steps):
        available = prompts_of(prompts, Cell(step.workload, run.cell.load))
        chosen += _drawn(matrix, available, run, int((steps == number).sum()))
    return chosen


def _trace_plan(matrix: Matrix, prompts: Prompts, run: Run) -> LoadPlan:
    """The rows that arrive within the run's seconds; the longest prompts go to the rows with the
    longest ones."""
    load = run.cell.load
    trace = read_trace(load.trace, time_scale=load.time_scale)
    times = trace.arrival_seconds - trace.arrival_seconds[0]
    count = int((times <= matrix.seconds).sum())
    drawn = _drawn(matrix, prompts_of(prompts, run.cell), run, count)
    ranks = match_by_length(
        np.array([len(prompt.text) for prompt in drawn]), trace.num_prompt_tokens[:count]
    )
    lengths = np.minimum(trace.num_output_tokens[:count], matrix.max_tokens).tolist()
    return LoadPlan(
        _requests(matrix, [drawn[i] for i in ranks.tolist()], lengths),
        arrival_seconds=times[:count],
    )


def _requests(
    matrix: Matrix, prompts: Sequence[Prompt], lengths: Sequence[int] | None = None
) -> list[LoadRequest]:
    """Requests with ids that differ: those of the same id are compared."""
    lengths = lengths or [matrix.max_tokens] * len(prompts)
    return [
        LoadRequest(f"{prompt.prompt_id} #{i}", prompt.task, prompt.text, length, matrix.seed + i)
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def _number(text: str) -> int:
    """The same for the same text, in every process."""
    return zlib.crc32(text.encode())
