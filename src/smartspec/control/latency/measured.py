"""Measured seconds of passes by size of the batch, draft length and kind of step.

In engines with captured graphs the time of a pass is no smooth function of its tokens. A step of
decoding requests alone runs as one graph, a step with prefill does not, and the next captured size
may take much longer. So each length is timed by itself. Times are kept relative to the profile's,
since batches of one size differ by some requests.
"""

from collections import Counter
from math import exp, log
from typing import Protocol

import numpy as np

from smartspec.control.records import BatchView

MEMORY = 12  # steps that a time is learned over
MOST = 0.5  # a step that takes 1.6 times as long does not do so because of its length

Key = tuple[int, int, bool]  # size of the batch, draft length, beside prefill


class Profile(Protocol):
    """The profiled time of passes: see latency.model.LatencyModel."""

    def profiled_seconds(
        self, view: BatchView, num_draft_tokens: np.ndarray, prefill_tokens: float
    ) -> np.ndarray: ...


class MeasuredSeconds:
    """Seconds of the target's pass. Sizes are classes of batch sizes, neighbours are numbered one
    by one."""

    def __init__(self) -> None:
        self._logs: dict[Key, float] = {}  # of measured over profiled seconds
        self._counts: Counter[Key] = Counter()
        self._last: dict[
            Key, tuple[BatchView, np.ndarray, float]
        ] = {}  # arguments of profiled_seconds
        self._seen: dict[Key, int] = {}
        self._num_passes = 0
        self._latency: Profile | None = None

    def use(self, latency: Profile) -> None:
        """Make times relative to this profile. What was measured stays the same."""
        if self._latency is not None and latency is not self._latency:
            for key, size in self._last.items():
                old, new = self._latency.profiled_seconds(*size), latency.profiled_seconds(*size)
                self._logs[key] += log(float(old[0] / new[0]))
        self._latency = latency

    def last_seen(self, size: int, length: int, mixed: bool) -> int:
        """Return the number of the last pass of that size and length, beside prefill or alone; 0
        for none."""
        return self._seen.get((size, length, mixed), 0)

    def observe(self, size: int, length: int, view: BatchView, seconds: float) -> None:
        """Learn from a pass in which every row was fed so many draft tokens."""
        if self._latency is None:
            return
        key = size, length, view.prefill_tokens > 0
        arguments = view, np.array([length * view.num_rows]), float(view.prefill_tokens)
        ratio = log(seconds / float(self._latency.profiled_seconds(*arguments)[0]))
        self._num_passes += 1
        self._seen[key] = self._num_passes
        self._counts[key] += 1
        old = self._logs.get(key, ratio)
        self._logs[key] = old + min(max(ratio - old, -MOST), MOST) / min(self._counts[key], MEMORY)
        self._last[key] = arguments

    def seconds(
        self, size: int, lengths: list[int], view: BatchView, prefill_tokens: float
    ) -> np.ndarray:
        """Return the seconds of a pass with each of these lengths beside so much prefill: float
        [n]."""
        assert self._latency is not None, "use() comes first"
        profiled = self._latency.profiled_seconds(
            view, view.num_rows * np.array(lengths), prefill_tokens
        )
        return profiled * [
            exp(self._log_of(size, length, prefill_tokens > 0, lengths)) for length in lengths
        ]

    def _log_of(self, size: int, length: int, mixed: bool, lengths: list[int]) -> float:
        """Return the log of measured over profiled seconds. Where the length was not timed: its own
        in the other kind of step, changed as the nearest length's is; else the nearest length's;
        else at the nearest size."""
        for near in sorted({each for each, _, _ in self._logs}, key=lambda each: abs(each - size)):
            logs = {
                k: log
                for (s, k, is_mixed), log in self._logs.items()
                if s == near and is_mixed == mixed
            }
            others = {
                k: log
                for (s, k, is_mixed), log in self._logs.items()
                if s == near and is_mixed != mixed
            }
            if length in logs:
                return logs[length]
            known = sorted(logs, key=lambda each: abs(each - length))
            if length in others:
                both = [each for each in known if each in others]
                return others[length] + (logs[both[0]] - others[both[0]] if both else 0.0)
            if known:
                return logs[known[0]]
        return 0.0
