"""Times real passes of every size that matters, in seconds."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low

import numpy as np
import torch

from smartspec.control.latency.model import ProfileSample
from smartspec.core.batch import chain
from smartspec.core.blocks import Trim
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head_runner import HeadRunner
from smartspec.engine.drafting.medusa_drafter import MedusaRunner
from smartspec.engine.drafting.p_eagle_drafter import PEagleRunner
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.huge_pages import collapse_pages
from smartspec.engine.sampling.verification import verify

MAX_PROFILE_SECONDS = 16.0
DRAFT_SHARE = 0.2  # of that for all draft models: their passes are small
# The first pass of a size may be slower (kernels are generated, memory is new): no size is timed only once.
MIN_REPETITIONS, MAX_REPETITIONS = 2, 3
MAX_POINT_SECONDS = 0.4  # spent on one size, once it has been repeated
LONGEST_VERIFICATION = 16  # new tokens per row; a pass with more stands for prefill

Runner = ModelRunner | HeadRunner | MedusaRunner


class Interrupted(Exception):
    """Somebody waits for the models that were being timed."""


@dataclass(frozen=True)
class Profile:
    """Measured passes of the target and of each draft model. waiting: share of the time for which a thread waited for a
    core that other processes had, or for which this one was suspended; 0 where the system does not tell."""

    target: tuple[ProfileSample, ...]
    drafts: tuple[tuple[ProfileSample, ...], ...] = ()
    waiting: float = 0.0


def measure_profile(
    target: ModelRunner,
    drafts: tuple[Runner, ...],
    *,
    max_batch: int,
    kv_tokens: int,
    interrupted: Callable[[], bool] = lambda: False,
) -> Profile:
    """Time passes of all models, in huge pages, as a server's soon are (see huge_pages). Their caches must not be in
    use: they are overwritten and emptied. Raises Interrupted within a second of interrupted() being true."""
    for _ in collapse_pages():
        pass
    for_drafts = DRAFT_SHARE * MAX_PROFILE_SECONDS if drafts else 0.0
    began, waited, ran = time.perf_counter(), _seconds_waited(), time.thread_time()
    of_target = measure_passes(target, max_batch, kv_tokens, MAX_PROFILE_SECONDS - for_drafts, interrupted)
    of_drafts = tuple(
        measure_passes(draft, max_batch, kv_tokens, for_drafts / len(drafts), interrupted) for draft in drafts
    )
    took = time.perf_counter() - began
    waiting = (_seconds_waited() - waited) / (took * torch.get_num_threads())
    if target.device.type == "cpu":  # where this thread computes all the time; a frozen one is not even waiting
        waiting = max(waiting, 1.0 - (time.thread_time() - ran) / took)
    return Profile(of_target, of_drafts, waiting)


def _seconds_waited() -> float:
    """For how long this process's threads have been ready to run while others had the cores (Linux: schedstat)."""
    counters = [path.read_text().split() for path in Path("/proc/self/task").glob("*/schedstat")]
    return sum(int(counter[1]) for counter in counters) / 1e9


def measure_passes(
    runner: Runner,
    max_batch: int,
    kv_tokens: int,
    max_seconds: float,
    interrupted: Callable[[], bool] = lambda: False,
) -> tuple[ProfileSample, ...]:
    """Median of up to three repetitions for a grid of passes, most telling sizes first, until max_seconds are over.

    A pass is timed as the executor does it: with what it emits verified, over a cache that has been written (memory
    that never was is one page of zeros to a CPU, and reads 4 rows of context in a tenth less time).
    """
    try:
        return tuple(_samples(runner, max_batch, kv_tokens, max_seconds, interrupted))
    finally:
        for slot in range(max_batch):
            runner.apply((Trim(slot, 0),))


def _samples(
    runner: Runner,
    max_batch: int,
    kv_tokens: int,
    max_seconds: float,
    interrupted: Callable[[], bool],
) -> Iterator[ProfileSample]:
    ends = time.perf_counter() + max_seconds
    last: float | None = None
    num_written = np.zeros(max_batch, dtype=np.int64)
    for rows, num_new, context in _grid(max_batch, runner.max_len, kv_tokens):
        if interrupted():
            raise Interrupted
        if last is not None and ends - time.perf_counter() < 2 * min(last, MAX_POINT_SECONDS):
            continue
        for slot in np.flatnonzero(num_written[:rows] < context):
            runner.cache.write_ones(slot, num_written[slot], context)
            num_written[slot] = context
        last = _time_pass(runner, rows, num_new, context)
        scored = rows * _num_logits(num_new)
        yield ProfileSample(rows * num_new, rows * (context + num_new), rows, last, scored)


def _grid(max_batch: int, max_len: int, kv_tokens: int) -> list[tuple[int, int, int]]:
    """(rows, new tokens per row, context per row) of the passes to measure: decoding, drafts, contexts, prefill."""
    batches = [rows for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256) if rows < max_batch] + [max_batch]
    points = [(rows, num_new, 128) for num_new in (1, 4) for rows in batches]
    points += [(rows, num_new, context) for context in (512, 1536) for num_new in (1, 4) for rows in (1, 4, 16)]
    points += [(1, num_new, 0) for num_new in (32, 64, 128, 256, 512)] + [(1, 256, 512), (1, 256, 1536), (1, 512, 512)]
    points += [(rows, num_new, 128) for num_new in (6, 2, 11, 3, 8) for rows in batches if rows * num_new <= 256]
    return [
        (rows, num_new, context)
        for rows, num_new, context in points
        if rows <= max_batch and context + num_new < max_len and rows * (context + num_new) <= kv_tokens
    ]


def _time_pass(runner: Runner, rows: int, num_new: int, context: int) -> float:
    token_ids = np.arange(num_new, dtype=np.int32) % runner.loaded.vocab_size
    segments = [Segment(slot, context, token_ids, _num_logits(num_new)) for slot in range(rows)]
    run = _draft_pass(runner, segments) if isinstance(runner, HeadRunner) else _verification(runner, segments)
    durations = []
    while len(durations) < MIN_REPETITIONS or (len(durations) < MAX_REPETITIONS and sum(durations) < MAX_POINT_SECONDS):
        began = time.perf_counter()
        run()
        durations.append(time.perf_counter() - began)
    return median_low(durations)


def _verification(runner: ModelRunner | MedusaRunner, segments: list[Segment]) -> Callable[[], object]:
    params = SamplingParams(temperature=0.0)
    requests = [Request(segment.slot, segment.token_ids, params, seed=0) for segment in segments]
    drafts = [chain(segment.token_ids[1 : segment.num_logits]) for segment in segments]
    return lambda: verify(runner.forward(segments), requests, drafts)


def _draft_pass(runner: HeadRunner, segments: list[Segment]) -> Callable[[], object]:
    """A pass of a head is one over features, in which it catches up. It asks for one row of each request, or where it
    makes whole drafts for one of each token."""
    if not isinstance(runner, PEagleRunner):
        segments = [replace(segment, num_logits=1) for segment in segments]
    return lambda: runner.propose(segments)


def _num_logits(num_new: int) -> int:
    """A prefill chunk wants one row of logits, a verification all of them."""
    return num_new if num_new <= LONGEST_VERIFICATION else 1
