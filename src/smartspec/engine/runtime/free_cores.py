"""The number of threads: as many as there are cores that other processes leave free.

The threads of a pass meet several times in every layer. One whose core another process has keeps
all others waiting, for a time slice of the scheduler instead of microseconds: beside one busy
process, two threads on two cores are slower than one. So what others use of the cores is looked at
a few times a second, and passes run on the rest. Outputs do not depend on the number of threads.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch

MIN_WINDOW, MAX_WINDOW = 0.2, 2.0  # seconds between two looks; what was used longer ago says little
# of a core in use by others: from here on it is theirs, below that no longer
TAKEN, GIVEN_BACK = 0.5, 0.35


@dataclass(frozen=True)
class Usage:
    """Seconds since some time in the past: on the clock, and that other processes used of this
    one's cores."""

    now: float
    others: float


def usage() -> Usage:
    """Usage as the system has counted it until now. Time that a hypervisor gave to other machines
    is not counted."""
    cores = os.sched_getaffinity(0)
    times = psutil.cpu_times(percpu=True)
    now = time.monotonic()
    unused = sum(
        times[core].idle + getattr(times[core], "iowait", 0) + getattr(times[core], "steal", 0)
        for core in cores
    )
    return Usage(now, len(cores) * now - unused - time.process_time())


class FreeCores:
    """Sets torch's number of threads, which is that of our kernels too, in the thread that
    computes. read: see usage; num_cores: that this process may use."""

    def __init__(self, read: Callable[[], Usage] = usage, num_cores: int | None = None):
        self._read, self._most = read, torch.get_num_threads()
        self._num_cores = num_cores or len(os.sched_getaffinity(0))
        self._last: Usage | None = None
        self.num_threads = self._most

    def adapt(self, now: float) -> None:
        """Adapt to the free cores, before every step. now: on the monotonic clock."""
        if self._most == 1 or (self._last is not None and now - self._last.now < MIN_WINDOW):
            return
        last, self._last = self._last, self._read()
        if last is not None and (window := self._last.now - last.now) < MAX_WINDOW:
            self._use(self._wanted((self._last.others - last.others) / window))

    def use_all(self) -> None:
        """Compute on as many threads as at first, such as to measure what passes take on them."""
        self._last = None
        self._use(self._most)

    def _wanted(self, others: float) -> int:
        """others: cores' worth of time that other processes use."""
        at_most = self._num_cores - int(others + 1 - TAKEN)
        at_least = self._num_cores - int(others + 1 - GIVEN_BACK)
        return max(1, min(self._most, at_most, max(self.num_threads, at_least)))

    def _use(self, num_threads: int) -> None:
        if num_threads != self.num_threads:
            torch.set_num_threads(num_threads)
            self.num_threads = num_threads
