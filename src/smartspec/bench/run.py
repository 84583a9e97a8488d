"""One measured run: from settings to requests, from requests to records and their summary."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from smartspec.bench.client import LoadRequest, Target
from smartspec.bench.load import LoadPlan, run_load
from smartspec.bench.probe import read_counters
from smartspec.workload.arrivals import Trace, poisson_arrivals, read_trace
from smartspec.workload.prompts import (
    Prompt,
    draw_prompts,
    match_by_length,
    read_prompts,
    shipped_prompts,
)
from smartspec.workload.records import RequestRecord
from smartspec.workload.summary import Summary, summarize, summarize_speculation

DEFAULT_MAX_TOKENS = 64


@dataclass(frozen=True)
class LoadSettings:
    """The requests to send, and their times. At most one of concurrency, rate and trace; none means
    concurrency 1."""

    # a file or a folder of files; None takes the prompts that the package ships
    prompts: str | None = None
    concurrency: int | None = None
    rate: float | None = None  # requests per second
    trace: str | None = None
    time_scale: float = 1.0
    num_prompts: int | None = None  # None takes every prompt (with a trace: every row) once
    # new tokens per request; with a trace a cap on the lengths recorded there
    max_tokens: int | None = None
    seed: int = 0


def plan_load(settings: LoadSettings) -> LoadPlan:
    """Read the files and draw prompts and arrivals from the seed. Raises ValueError for bad
    settings or files."""
    modes = {
        "--concurrency": settings.concurrency,
        "--rate": settings.rate,
        "--trace": settings.trace,
    }
    given = [name for name, value in modes.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} exclude each other: give one of them")
    if settings.time_scale != 1 and settings.trace is None:
        raise ValueError(
            f"--time-scale {settings.time_scale:g} is for a --trace, and there is none: leave it "
            "out"
        )
    path = settings.prompts
    prompts = shipped_prompts() if path is None else read_prompts(path)
    prompts_rng, arrivals_rng = (
        np.random.default_rng([settings.seed, stream]) for stream in range(2)
    )
    if settings.trace is not None:
        trace = read_trace(
            settings.trace, time_scale=settings.time_scale, limit=settings.num_prompts
        )
        return _plan_trace(trace, draw_prompts(prompts, len(trace), prompts_rng), settings)
    drawn = draw_prompts(prompts, settings.num_prompts or len(prompts), prompts_rng)
    max_tokens = settings.max_tokens or DEFAULT_MAX_TOKENS
    requests = [_request(prompt, max_tokens, settings.seed + i) for i, prompt in enumerate(drawn)]
    if settings.rate is not None:
        return LoadPlan(
            requests, arrival_seconds=poisson_arrivals(settings.rate, len(requests), arrivals_rng)
        )
    return LoadPlan(requests, concurrency=settings.concurrency or 1)


def _plan_trace(trace: Trace, prompts: list[Prompt], settings: LoadSettings) -> LoadPlan:
    num_output_tokens = np.minimum(
        trace.num_output_tokens, settings.max_tokens or np.iinfo(np.int64).max
    )
    chosen = match_by_length(
        np.array([len(prompt.text) for prompt in prompts]), trace.num_prompt_tokens
    )
    requests = [
        _request(prompts[index], max_tokens, settings.seed + i)
        for i, (index, max_tokens) in enumerate(
            zip(chosen.tolist(), num_output_tokens.tolist(), strict=True)
        )
    ]
    return LoadPlan(requests, arrival_seconds=trace.arrival_seconds)


def _request(prompt: Prompt, max_tokens: int, seed: int) -> LoadRequest:
    return LoadRequest(prompt.prompt_id, prompt.task, prompt.text, max_tokens, seed)


def measure(
    target: Target, plan: LoadPlan, on_record: Callable[[RequestRecord], None] = lambda record: None
) -> tuple[list[RequestRecord], Summary]:
    """Run the load to its end, or until Ctrl-C: then summary.num_unfinished tells how many requests
    are missing."""
    records: list[RequestRecord] = []

    def keep(record: RequestRecord) -> None:
        records.append(record)
        on_record(record)

    before = read_counters(target.base_url, target.api_key)
    with suppress(KeyboardInterrupt):  # Ctrl-C: the person wants the results so far
        asyncio.run(run_load(target, plan, keep))
    speculation = summarize_speculation(before, read_counters(target.base_url, target.api_key))
    num_unfinished = len(plan.requests) - len(records)
    return records, summarize(records, num_unfinished=num_unfinished, speculation=speculation)
