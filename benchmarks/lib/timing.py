"""Times of calls that take turns, so that all see the same machine, and the bandwidth of memory."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

READ_BYTES = 1 << 28
WALL, CPU = 0, 1


def in_turns(
    calls: Sequence[Callable[[], object]], repetitions: int, min_seconds: float = 0.0
) -> np.ndarray:
    """Seconds of every call, on the clock and of all threads of this process: float [repetitions,
    calls, 2].

    More repetitions are made until min_seconds are over.
    """
    found: list[list[tuple[float, float]]] = []
    began = time.perf_counter()
    while len(found) < repetitions or time.perf_counter() - began < min_seconds:
        found.append([_seconds(call) for call in calls])
    return np.array(found)


def bandwidth() -> float:
    """Bytes a second that all threads read."""
    memory = torch.ones(READ_BYTES // 4)
    return READ_BYTES / float(in_turns([memory.sum], 5)[:, 0, WALL].min())


def _seconds(call: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu
