"""What a token is worth in a mixed prefill-decode batch, where almost every step is mixed and arrivals are closed-loop.

In a mixed batch time is priced as in steps without prefill (see choice): a token made now is one that need not be made
there. That is wrong where such steps hardly come any more and arrivals are closed-loop, as in a closed loop of long
prompts and short answers. All time is then prefill's, latency is the number of requests over throughput, and a token
made sooner saves no more than what a row adds to another mixed step. Drafts that are cheap at the usual price made such
servers 2 to 5 % slower than plain decoding.

Under open-loop arrivals the usual price is right even if all steps are mixed: a request that ends sooner leaves the
batch sooner. So two things have to be known: the share of tokens made in steps without prefill, and whether arrivals
depend on departures.

The price of steps without prefill counts the requests that will decode there. Of a wave these are all that wait. Of a
long queue under open-loop arrivals they are not: those at its head have left before its end is prefilled.
"""

import numpy as np

from smartspec.control.goodput.arrivals import Arrivals
from smartspec.control.policy import Estimates
from smartspec.control.records import BatchView, StepFeedback

FADE = 1 - 1 / 256  # per step
START_TOKENS = 1000.0  # in steps without prefill, believed to have been made before the first
LARGEST_PROJECTED_BATCH = 3  # times the requests in decode or prefill now, under open-loop arrivals
ENOUGH_WITHOUT_PREFILL = 0.15  # share of tokens; they are worth as much less as the square of the share is smaller
_NOBODY = np.zeros(0, dtype=np.int64)


class PrefillPrice:
    """Learns from every step; prices the time of mixed steps. arrivals: whoever owns it lets it learn."""

    def __init__(self, arrivals: Arrivals):
        self._without_prefill, self._tokens = START_TOKENS, START_TOKENS
        self._arrivals = arrivals

    @property
    def usual_part(self) -> float:
        """How far the price of steps without prefill holds: from 0 to 1."""
        share = min(self._without_prefill / self._tokens / ENOUGH_WITHOUT_PREFILL, 1.0)
        return max(share**2, self._arrivals.openness)

    def num_joining(self, view: BatchView) -> int:
        """How many waiting requests will decode in the projected batch, together with those in decode and prefill."""
        most = (LARGEST_PROJECTED_BATCH - 1) * (view.num_rows + view.num_prefills)
        return min(view.num_waiting, most) if self._arrivals.are_open else view.num_waiting

    def value_of_time(self, usual: float, view: BatchView, estimates: Estimates) -> float:
        """(Weighted) tokens per second that the time of this mixed step is worth; usual: by the price of steps
        without."""
        part = self.usual_part
        if part == 1.0 or not usual:
            return usual
        saved_seconds = min(_row_seconds(view, estimates), 1.0 / usual)
        return 1.0 / (part / usual + (1.0 - part) * saved_seconds)

    def observe(self, feedback: StepFeedback) -> None:
        """Learn from a finished step."""
        view = feedback.view
        tokens = view.num_rows + float(feedback.accepted.sum())
        self._tokens = FADE * self._tokens + tokens
        self._without_prefill = FADE * self._without_prefill + tokens * (not view.prefill_tokens)


def _row_seconds(view: BatchView, estimates: Estimates) -> float:
    """What each weighted token of the decoding requests, without drafts, adds to the step's prefill."""
    prefill_alone = BatchView(
        request_ids=_NOBODY,
        context_tokens=_NOBODY,
        max_draft_tokens=_NOBODY,
        num_prefills=view.num_prefills,
        prefill_tokens=view.prefill_tokens,
        prefill_context_tokens=view.prefill_context_tokens,
        prefill_attended_tokens=view.prefill_attended_tokens,
    )
    of_all, of_prefill = (
        float(estimates.latency.target_seconds(step, np.zeros(1))[0]) for step in (view, prefill_alone)
    )
    return (of_all - of_prefill) / float(view.weights.sum())
