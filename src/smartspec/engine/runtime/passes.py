"""Times real passes of every size that matters, in seconds."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

import torch

from smartspec.control import ProfileSample
from smartspec.core.batch import Batch
from smartspec.core.blocks import Trim
from smartspec.core.drafter import ProfiledDrafter
from smartspec.engine.drafting.pass_of_size import num_scored, verification_pass
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.huge_pages import collapse_pages

MAX_PROFILE_SECONDS = 16.0
DRAFT_SHARE = 0.2  # of that for all draft models: their passes are small
# The first pass of a size may be slower (kernels are generated, memory is new): no size is timed
# only once.
MIN_REPETITIONS, MAX_REPETITIONS = 2, 3
MAX_POINT_SECONDS = 0.4  # spent on one size, once it has been repeated


@dataclass(frozen=True)
class TargetPasses:
    """The passes of the target, as those of a drafter."""

    runner: ModelRunner

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        return verification_pass(self.runner, num_rows, num_new, context)

    def begin_step(self, batch: Batch) -> None:
        self.runner.apply(batch.memory_ops)


class Interrupted(Exception):
    """A request waits for the models that were being timed."""


@dataclass(frozen=True)
class Profile:
    """Measured passes of the target and of each draft model."""

    target: tuple[ProfileSample, ...]
    drafts: tuple[tuple[ProfileSample, ...], ...] = ()
    # share of the time for which a thread waited for a core that other processes had, or for which
    # this one was suspended; 0 where the system does not tell
    waiting: float = 0.0


@dataclass(frozen=True)
class Profiled:
    """The models whose passes are timed, and what they are to serve."""

    target: ModelRunner
    drafters: tuple[ProfiledDrafter, ...]  # those with passes
    max_batch: int
    kv_tokens: int


def measure_profile(models: Profiled, interrupted: Callable[[], bool] = lambda: False) -> Profile:
    """Time passes of the models, in huge pages, as a server's soon are (see huge_pages). Their
    caches must not be in use: they are overwritten and emptied. Raises Interrupted within a second
    of interrupted() being true."""
    for _ in collapse_pages():
        pass
    for_drafts = DRAFT_SHARE * MAX_PROFILE_SECONDS if models.drafters else 0.0
    longest = models.target.max_len
    limits = {
        "max_batch": models.max_batch,
        "kv_tokens": models.kv_tokens,
        "interrupted": interrupted,
    }
    began, waited, ran = time.perf_counter(), _seconds_waited(), time.thread_time()
    of_target = measure_passes(
        TargetPasses(models.target),
        max_len=longest,
        max_seconds=MAX_PROFILE_SECONDS - for_drafts,
        **limits,
    )
    of_drafts = [
        measure_passes(
            drafter,
            max_len=min(longest, getattr(drafter, "max_len", longest)),
            max_seconds=for_drafts / len(models.drafters),
            max_context=drafter.spec.context_limit,
            **limits,
        )
        for drafter in models.drafters
    ]
    took = time.perf_counter() - began
    waiting = (_seconds_waited() - waited) / (took * torch.get_num_threads())
    # where this thread computes all the time; a frozen one is not even waiting
    if models.target.device.type == "cpu":
        waiting = max(waiting, 1.0 - (time.thread_time() - ran) / took)
    return Profile(of_target, tuple(of_drafts), waiting)


def _seconds_waited() -> float:
    """The seconds for which this process's threads were ready to run while others had the cores
    (Linux: schedstat)."""
    counters = [path.read_text().split() for path in Path("/proc/self/task").glob("*/schedstat")]
    return sum(int(counter[1]) for counter in counters) / 1e9


def measure_passes(
    timed: TargetPasses | ProfiledDrafter,
    *,
    max_len: int,
    max_batch: int,
    kv_tokens: int,
    max_seconds: float,
    max_context: int = 0,
    interrupted: Callable[[], bool] = lambda: False,
) -> tuple[ProfileSample, ...]:
    """Median of up to three repetitions for a grid of passes, most telling sizes first, until
    max_seconds are over. max_context: what a pass reads at most of each row, 0: all."""
    grid = _grid(max_batch, max_len, kv_tokens)
    if max_context:
        grid = list(
            dict.fromkeys(
                (rows, num_new, min(context, max_context)) for rows, num_new, context in grid
            )
        )
    try:
        return tuple(_samples(timed, grid, max_seconds, interrupted))
    finally:
        timed.begin_step(Batch(memory_ops=tuple([Trim(slot, 0) for slot in range(max_batch)])))


def _samples(
    timed: TargetPasses | ProfiledDrafter,
    grid: list[tuple[int, int, int]],
    max_seconds: float,
    interrupted: Callable[[], bool],
) -> Iterator[ProfileSample]:
    ends = time.perf_counter() + max_seconds
    last: float | None = None
    for rows, num_new, context in grid:
        if interrupted():
            raise Interrupted
        if last is not None and ends - time.perf_counter() < 2 * min(last, MAX_POINT_SECONDS):
            continue
        last = _time_pass(timed.profile_pass(rows, num_new, context))
        scored = rows * num_scored(num_new)
        yield ProfileSample(rows * num_new, rows * (context + num_new), rows, last, scored)


def _grid(max_batch: int, max_len: int, kv_tokens: int) -> list[tuple[int, int, int]]:
    """(rows, new tokens per row, context per row) of the passes to measure: decoding, drafts,
    contexts, prefill."""
    batches = [rows for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256) if rows < max_batch] + [
        max_batch
    ]
    points = [(rows, num_new, 128) for num_new in (1, 4) for rows in batches]
    points += [
        (rows, num_new, context)
        for context in (512, 1536)
        for num_new in (1, 4)
        for rows in (1, 4, 16)
    ]
    points += [(1, num_new, 0) for num_new in (32, 64, 128, 256, 512)] + [
        (1, 256, 512),
        (1, 256, 1536),
        (1, 512, 512),
    ]
    points += [
        (rows, num_new, 128)
        for num_new in (6, 2, 11, 3, 8)
        for rows in batches
        if rows * num_new <= 256
    ]
    return [
        (rows, num_new, context)
        for rows, num_new, context in points
        if rows <= max_batch
        and context + num_new < max_len
        and rows * (context + num_new) <= kv_tokens
    ]


def _time_pass(run: Callable[[], object]) -> float:
    durations: list[float] = []
    while len(durations) < MIN_REPETITIONS or (
        len(durations) < MAX_REPETITIONS and sum(durations) < MAX_POINT_SECONDS
    ):
        began = time.perf_counter()
        run()
        durations.append(time.perf_counter() - began)
    return median_low(durations)
