"""Windows: stretches of time with speculation or without, and their measurement.

The measure is the speed of a request: tokens emitted, divided by the seconds that requests spent in
steps, summed over requests. It is one over the time per output token, with prefill. So it says what
callers feel, whether load is a number of requests at a time or a rate of arrivals. Waiting requests
and idle time count for nothing.
"""

from collections.abc import Generator
from dataclasses import dataclass

WINDOW = "window"  # the reason of a window without speculation: vLLM alone is measured
UNSETTLED_STEPS = 3  # at the start of a window: two may be under way, scheduled before it
LONGEST = 10  # times its seconds: then a window with too few steps ends too


@dataclass(frozen=True)
class Part:
    """The plan of a window."""

    reason: str | None  # for which speculation is off in it, None where it is on
    seconds: float
    settle_seconds: float = 0.0  # at its start: their steps do not count
    least_steps: int = 0  # with fewer it goes on, up to LONGEST
    is_measured: bool = True


@dataclass(kw_only=True)
class Side:
    """Sums over the steps that count."""

    tokens: float = 0.0
    busy_seconds: float = 0.0
    request_seconds: float = 0.0  # the same, times the requests of each step

    def add(self, other: "Side") -> None:
        self.tokens += other.tokens
        self.busy_seconds += other.busy_seconds
        self.request_seconds += other.request_seconds

    @property
    def speed(self) -> float:
        """Tokens per second and request."""
        return self.tokens / self.request_seconds if self.request_seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.busy_seconds if self.busy_seconds else 0.0


@dataclass
class Window(Side):
    """The measurement of a part."""

    part: Part
    start: float  # seconds of the clock
    steps: int = 0  # that count
    length: float = 0.0  # of the whole window, in seconds, once it is over

    @property
    def requests(self) -> float:
        """The mean number of requests at a time."""
        return self.request_seconds / self.busy_seconds if self.busy_seconds else 0.0

    def is_over(self, now: float) -> bool:
        elapsed, part = now - self.start, self.part
        has_steps = self.steps >= part.least_steps or elapsed >= LONGEST * part.seconds
        return elapsed >= part.seconds and has_steps


Windows = Generator[Part, Window, None]  # yields parts, and gets the measurement of each


class Meter:
    """A measurement of one window after the other. Times are those of a clock that never goes back.
    A step does not count if it seems to take less than nothing, or longer than its whole window
    (the process was stopped, say)."""

    def __init__(self):
        self.window: Window | None = None
        self._num_steps = 0  # since the start of the window
        # the end of the last step; None while there are no requests
        self._last: float | None = None

    @property
    def is_measuring(self) -> bool:
        """True while steps are measured."""
        return self.window is not None and self.window.part.is_measured

    def begin(self, part: Part, now: float) -> None:
        self.window, self._num_steps = Window(part, now), 0
        if not part.is_measured:
            self._last = None

    def begin_step(self, now: float) -> None:
        """Note that a step is scheduled. After a pause, time counts from here on."""
        if self._last is None:
            self._last = now

    def finish_step(self, now: float, tokens: int, requests: int, is_idle: bool) -> None:
        """Count a step that is over: its emitted tokens, its requests. is_idle: no requests are
        left."""
        window, last, self._last = self.window, self._last, None if is_idle else now
        self._num_steps += 1
        if window is None or last is None or self._num_steps <= UNSETTLED_STEPS:
            return
        seconds = now - last
        if (
            last < window.start + window.part.settle_seconds
            or not 0 <= seconds <= window.part.seconds
        ):
            return
        window.steps += 1
        window.tokens += tokens
        window.busy_seconds += seconds
        window.request_seconds += requests * seconds

    def end(self, now: float) -> Window:
        """End the window, and return it."""
        window, self.window = self.window, None
        window.length = now - window.start
        return window
