"""Whether arrivals are open-loop or closed-loop.

Open-loop arrivals are independent of departures, and the number of requests wanders: it changes by about the root of
how many came and went. In a closed loop every request that ends is followed by a new one, and it stays constant. The
two differ in what is worth while: what a token in a mixed prefill-decode batch saves (prefill_price) and whose tokens
count (fairness).

The wandering of a look is change^2 / (requests that came + requests that went), 1 at most: the variance of independent
Poisson arrivals and departures would make it 1 on average were it not cut, and about 0.5 as it is.
"""

from smartspec.control.records import BatchView

MIN_ENDED = 4  # requests after which their number is looked at again, and at least a quarter of it
RATE = 1 / 16  # of learning, per look
CLOSED, OPEN = 0.1, 0.35  # wandering below which arrivals are closed-loop, and above which they are open-loop
START = 0.16  # wandering believed before the first look: rather closed, but four looks may change that


class Arrivals:
    """Learns from every step and every request that ends; whoever asks is told the same."""

    def __init__(self):
        self._wandering = START
        self._num_requests: int | None = None  # at the last look
        self._num_ended = 0  # since then

    @property
    def openness(self) -> float:
        """From 0, closed-loop, to 1, open-loop."""
        return min(max((self._wandering - CLOSED) / (OPEN - CLOSED), 0.0), 1.0)

    @property
    def are_open(self) -> bool:
        """Whether arrivals are open-loop rather than closed-loop."""
        return self.openness > 0.5

    def request_ended(self) -> None:
        """Learn that a request is gone, whatever it was doing."""
        self._num_ended += 1

    def observe(self, view: BatchView) -> None:
        """Learn from the requests of a finished step."""
        num_requests = view.num_rows + view.num_prefills + view.num_waiting
        if self._num_requests is None:
            self._num_requests, self._num_ended = num_requests, 0
        if self._num_ended < max(MIN_ENDED, num_requests / 4):
            return
        change = num_requests - self._num_requests
        num_moves = self._num_ended + max(self._num_ended + change, 0)
        self._wandering += RATE * (min(change**2 / num_moves, 1.0) - self._wandering)
        self._num_requests, self._num_ended = num_requests, 0
