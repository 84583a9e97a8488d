"""Measured seconds of passes by size of the batch, draft length and kind of step.

In engines with captured graphs the time of a pass is no smooth function of its tokens. A step of
decoding requests alone runs as one graph, a step with prefill does not, and the next captured size
may take much longer. So each length is timed by itself. Times are kept relative to the profile's,
since batches of one size differ by some requests.
"""

from dataclasses import dataclass
from math import exp, log

import numpy as np

from smartspec.control.estimates import Latency
from smartspec.control.records import BatchView

MEMORY = 12  # steps that a time is learned over
MOST = 0.5  # a step that takes 1.6 times as long does not do so because of its length


@dataclass
class _Timed:
    """The passes of one size of the batch and one draft length, beside prefill or alone."""

    log: float  # of measured over profiled seconds
    last: tuple[BatchView, np.ndarray, float]  # arguments of profiled_seconds
    num_passes: int = 0
    seen: int = 0  # the number of the last pass


class MeasuredSeconds:
    """Seconds of the target's pass. Sizes are classes of batch sizes, neighbours are numbered one
    by one."""

    def __init__(self) -> None:
        self._timed: dict[tuple[int, int, bool], _Timed] = {}  # by size, length, beside prefill
        self._num_passes = 0
        self._latency: Latency | None = None

    def use(self, latency: Latency) -> None:
        """Make times relative to this profile. What was measured stays the same."""
        if self._latency is not None and latency is not self._latency:
            for timed in self._timed.values():
                old, new = (
                    float(profile.profiled_seconds(*timed.last)[0])
                    for profile in (self._latency, latency)
                )
                timed.log += log(old / new)
        self._latency = latency

    def last_seen(self, size: int, length: int, mixed: bool) -> int:
        """Return the number of the last pass of that size and length, beside prefill or alone; 0
        for none."""
        timed = self._timed.get((size, length, mixed))
        return timed.seen if timed else 0

    def observe(self, size: int, length: int, view: BatchView, seconds: float) -> None:
        """Learn from a pass in which every row was fed so many draft tokens."""
        if self._latency is None:
            return
        last = view, np.array([length * view.num_rows]), float(view.prefill_tokens)
        ratio = log(seconds / float(self._latency.profiled_seconds(*last)[0]))
        key = size, length, view.prefill_tokens > 0
        timed = self._timed.setdefault(key, _Timed(ratio, last))
        self._num_passes += 1
        timed.last, timed.seen = last, self._num_passes
        timed.num_passes += 1
        change = min(max(ratio - timed.log, -MOST), MOST)
        timed.log += change / min(timed.num_passes, MEMORY)

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
        sizes = {each for each, _, _ in self._timed}
        for near in sorted(sizes, key=lambda each: abs(each - size)):
            logs, others = (
                {k: timed.log for (s, k, m), timed in self._timed.items() if (s, m) == (near, kind)}
                for kind in (mixed, not mixed)
            )
            if length in logs:
                return logs[length]
            known = sorted(logs, key=lambda each: abs(each - length))
            if length in others:
                both = [each for each in known if each in others]
                return others[length] + (logs[both[0]] - others[both[0]] if both else 0.0)
            if known:
                return logs[known[0]]
        return 0.0
