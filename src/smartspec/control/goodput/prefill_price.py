"""The price of time in mixed steps. It is low where almost every step is mixed and arrivals are closed-loop.

In a mixed batch time usually has the price of steps without prefill (see prices): a token made now need not be made
there. Under open-loop arrivals that holds even if such steps are rare, because a request that ends sooner leaves the
batch sooner. In a closed loop of long prompts and short answers it does not hold. Nearly all time is spent on prefill,
and latency is the number of requests over throughput. A token made sooner then saves only what its row adds to another
mixed step. At the usual price, drafts made such servers 6 % slower than plain decoding.

Arrivals are told apart by the change of the number of requests. Open-loop, it changes by about the square root of the
number of requests that came and went. Closed-loop, every request that ends is followed by a new one, and the number
stays constant. The number is read from time to time. Its wandering between two readings is defined as change^2 /
(requests that came + requests that went), at most 1. The mean is about 0.5 for independent Poisson arrivals and
departures, and 0 in a closed loop.
"""

import numpy as np

from smartspec.control.goodput.settings import PrefillPriceSettings
from smartspec.control.policy import Estimates
from smartspec.control.records import BatchView, Outcome

MIN_ENDED = 4  # ended requests between two readings of the number of requests, and at least a quarter of it
_NO_ROWS = np.zeros(0, dtype=np.int64)


class PrefillPrice:
    """The price of time in mixed steps, learned from every step and every request that ends."""

    def __init__(self, settings: PrefillPriceSettings):
        self._settings = settings
        self._share = 1.0  # of tokens that are made in steps without prefill
        self._wandering = 1.5 * settings.open_wandering  # arrivals count as open until a few readings say otherwise
        self._num_requests = 0  # at the last reading
        self._num_ended = 0  # requests that ended since the last reading

    @property
    def has_open_arrivals(self) -> bool:
        """True if arrivals are independent of departures."""
        return self._wandering > self._settings.open_wandering

    @property
    def usual_part(self) -> float:
        """The part, from 0 to 1, to which the price of steps without prefill holds."""
        return 1.0 if self.has_open_arrivals else self._share

    def value_of_time(self, usual: float, view: BatchView, estimates: Estimates) -> float:
        """Return the (weighted) tokens per second that the time of this mixed step is worth. usual: the same by the
        price of steps without prefill."""
        part = self.usual_part
        if part == 1.0 or not usual:
            return usual
        saved_seconds = min(_row_seconds(view, estimates), 1.0 / usual)
        return 1.0 / (part / usual + (1.0 - part) * saved_seconds)

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished step."""
        view = outcome.view
        if view.num_rows:
            self._share += (float(not view.prefill_tokens) - self._share) / self._settings.share_memory
        num_requests = view.num_rows + view.num_prefills + view.num_waiting
        if self._num_ended >= max(MIN_ENDED, num_requests / 4):
            change = num_requests - self._num_requests
            num_moves = self._num_ended + max(self._num_ended + change, 0)
            found = min(change**2 / num_moves, 1.0)
            self._wandering += self._settings.wandering_rate * (found - self._wandering)
            self._num_ended = 0
        if not self._num_ended:
            self._num_requests = num_requests

    def request_ended(self) -> None:
        """Learn that a request has ended, in whatever state."""
        self._num_ended += 1


def _row_seconds(view: BatchView, estimates: Estimates) -> float:
    """Return the seconds that each weighted token of the decoding requests, without drafts, adds to the step's
    prefill."""
    prefill_alone = BatchView(
        request_ids=_NO_ROWS,
        context_tokens=_NO_ROWS,
        max_draft_tokens=_NO_ROWS,
        num_prefills=view.num_prefills,
        prefill_tokens=view.prefill_tokens,
        prefill_context_tokens=view.prefill_context_tokens,
        prefill_attended_tokens=view.prefill_attended_tokens,
    )
    of_all, of_prefill = map(estimates.latency.off_seconds, (view, prefill_alone))
    return (of_all - of_prefill) / float(view.weights.sum())
