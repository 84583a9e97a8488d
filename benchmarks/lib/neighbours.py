"""How fast servers are beside processes that use whole cores (`peers.py neighbours`)."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from smartspec.bench.client import LoadRequest, Target
from smartspec.bench.load import LoadPlan
from smartspec.bench.run import measure

# ends with this process
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


@dataclass(frozen=True)
class Wave:
    """Tokens per second over requests, and the longest of them in seconds."""

    rate: float
    longest: float


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes beside this block, each of which uses as much of a core as it gets. They
    are in sessions of their own, as another user's program is."""
    started = [
        subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def wave(target: Target, texts: list[str], concurrency: int, max_tokens: int) -> Wave:
    """All texts answered, so many at once. ValueError where one is not."""
    requests = [LoadRequest(text, "neighbours", text, max_tokens) for text in texts]
    records, summary = measure(target, LoadPlan(requests, concurrency=concurrency))
    if summary.num_completed < len(requests):
        raise ValueError(
            f"{len(requests) - summary.num_completed} requests failed: {summary.errors}"
        )
    return Wave(
        summary.output_tokens_per_second, max(record.end_to_end_seconds for record in records)
    )


def quiet_and_busy(
    target: Target,
    texts: Iterator[str],
    concurrency: int,
    max_tokens: int,
    rounds: int,
    num_neighbours: int,
) -> tuple[list[Wave], list[Wave]]:
    """Waves without and with neighbours, in turn, so that a drifting machine favours none."""
    count = max(4, concurrency)
    quiet, busy = [], []
    for _ in range(rounds):
        quiet.append(wave(target, [next(texts) for _ in range(count)], concurrency, max_tokens))
        with neighbours(num_neighbours):
            busy.append(wave(target, [next(texts) for _ in range(count)], concurrency, max_tokens))
    return quiet, busy


def line(name: str, concurrency: int, quiet: list[Wave], busy: list[Wave]) -> list[str]:
    """Of the table: medians of the waves, the spread of their ratios, the longest request of all
    beside neighbours."""
    ratios = [there.rate / here.rate for here, there in zip(quiet, busy, strict=True)]
    calm, loud = median(wave.rate for wave in quiet), median(wave.rate for wave in busy)
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
    longest = max(wave.longest for wave in busy)
    return [
        name,
        str(concurrency),
        f"{calm:.1f}",
        f"{loud:.1f}",
        f"{loud / calm:.2f}",
        spread,
        f"{longest:.2f}",
    ]
