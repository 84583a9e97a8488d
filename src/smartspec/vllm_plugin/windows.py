"""Stretches of time with speculation or without, and what is measured in them.

The measure is the speed of a request: tokens emitted, divided by the seconds that requests spent in steps, summed over
requests. It is one over the time per output token, with prefill. So it says what callers feel, whether load is a number
of requests at a time or a rate of arrivals. Waiting requests and idle time count for nothing.
"""

from collections.abc import Generator
from dataclasses import dataclass

WINDOW = "window"  # why speculation is off: to measure what vLLM does without
UNSETTLED_STEPS = 3  # at the begin of a window: two may be under way, scheduled before it
LONGEST = 10  # times its seconds, after which a window ends that has too few steps


@dataclass(frozen=True)
class Part:
    """A window that is wanted. reason: why speculation is off in it, None where it is on. settle_seconds: at its begin,
    in which nothing counts. least_steps: that it is to have, where it would end before. counts: whether anything is
    measured in it."""

    reason: str | None
    seconds: float
    settle_seconds: float = 0.0
    least_steps: int = 0
    counts: bool = True


@dataclass
class Window:
    """What was measured in a part that began at a time. steps, tokens: that count. busy_seconds: that they took.
    request_seconds: the same, times the requests of each step. length: of all of it, in seconds, once it is over."""

    part: Part
    began: float
    steps: int = 0
    tokens: int = 0
    busy_seconds: float = 0.0
    request_seconds: float = 0.0
    length: float = 0.0

    @property
    def speed(self) -> float:
        """Tokens per second and request."""
        return self.tokens / self.request_seconds if self.request_seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def requests(self) -> float:
        """Mean number of requests at a time."""
        return self.request_seconds / self.busy_seconds if self.busy_seconds else 0.0

    def is_over(self, now: float) -> bool:
        elapsed, part = now - self.began, self.part
        has_steps = self.steps >= part.least_steps or elapsed >= LONGEST * part.seconds
        return elapsed >= part.seconds and has_steps


Windows = Generator[Part, Window, None]  # yields what is wanted, and gets what was measured in it


class Meter:
    """Measures one window after the other. Times are those of a clock that never goes back; a step that seems to take
    longer than its whole window (the process was stopped, say) or less than nothing counts for nothing."""

    def __init__(self):
        self.window: Window | None = None
        self._finished = 0  # steps since the window began
        self._last: float | None = None  # when the last step was over; None while there are no requests

    @property
    def counts(self) -> bool:
        """Whether steps are measured now."""
        return self.window is not None and self.window.part.counts

    def begin(self, part: Part, now: float) -> None:
        self.window, self._finished = Window(part, now), 0
        if not part.counts:
            self._last = None

    def scheduling(self, now: float) -> None:
        """A step is scheduled: after a pause, time counts from here on."""
        if self._last is None:
            self._last = now

    def finish_step(self, now: float, tokens: int, requests: int, is_idle: bool) -> None:
        """A step is over. tokens: emitted in it. requests: that it fed. is_idle: no requests are left."""
        window, last, self._last = self.window, self._last, None if is_idle else now
        self._finished += 1
        if window is None or last is None or self._finished <= UNSETTLED_STEPS:
            return
        seconds = now - last
        if last < window.began + window.part.settle_seconds or not 0 <= seconds <= window.part.seconds:
            return
        window.steps += 1
        window.tokens += tokens
        window.busy_seconds += seconds
        window.request_seconds += requests * seconds

    def end(self, now: float) -> Window:
        """The window, which is over."""
        assert self.window is not None, "no window has begun"
        window, self.window = self.window, None
        window.length = now - window.began
        return window
