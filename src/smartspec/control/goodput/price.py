"""The price of a second of step time, in (weighted) tokens.

* In a step of decoding requests alone it is the goodput of the plan that it leads to. A few rounds
  find it: keep what pays at a price, take the goodput of the result as the next price (Dinkelbach).
* Beside prefill a second is not worth less. A token made now need not be made later, in a step of
  these requests, or of these and those that are in prefill or wait, without prefill. In a closed
  loop that has hardly such steps, a token saves what a token adds to another step with prefill.
* A draft prefill feeds a drafter the tokens that its KV lacks, once for all later drafts of the
  request. It has to be worth its time over the steps that the request still lives.
"""

import numpy as np

from smartspec.control.estimates import Latency
from smartspec.control.goodput.candidates import Candidate
from smartspec.control.goodput.worth import Costs, kept_tokens
from smartspec.control.records import BatchView, Outcome

# Tokens expected of a request before any has ended, and the weight of that. As many steps at most
# may pay a draft prefill back: loads change.
ANSWER, NUM_ANSWERS = 160.0, 4.0
FADE = 1.0 / 128  # of ended requests
SHARE_FADE = 1.0 / 256  # of steps
OPEN, WANDERING_FADE = 0.2, 1.0 / 16


def costs_of(view: BatchView, candidate: Candidate, latency: Latency, near: int) -> Costs:
    """Return the costs of a step. The time of a token is the mean from half to twice near tokens:
    times of passes have steps."""
    most = max(int(candidate.caps.sum()), 1)
    near = min(max(near, 1), most)
    high = min(2 * near + 2, most)
    low = min(near // 2, high - 1)
    plain, at_low, at_high = latency.target_seconds(view, np.array([0, low, high])).tolist()
    num, width = candidate.estimates.max_draft_tokens, candidate.estimates.width
    passes = np.zeros(num)
    if candidate.group:
        up_to_date = view.with_lags_up_to(num + 1)
        seconds = latency.draft_seconds(up_to_date, candidate.drafter, num, width)
        passes = np.diff(seconds, axis=1).sum(axis=0)
    return Costs(plain + latency.host_seconds, (at_high - at_low) / (high - low), passes)


def best_price(
    start: float, candidate: Candidate, costs: Costs, total: float
) -> tuple[float, np.ndarray]:
    """Return the price of a step without prefill, and the tokens that are kept at it: bool [R, K].
    start: a price to begin with. total: tokens of a step without drafts."""
    worth, depths = candidate.worth, candidate.depths
    off = total / costs.plain
    price = max(start, off)
    while True:
        kept = kept_tokens(price, worth, depths, costs)
        seconds = costs.plain + costs.of_drafts(kept, depths)
        found = (total + float(worth.sum(where=kept))) / seconds
        if not abs(found - price) >= 1e-3 * price:  # nor where one is NaN
            break
        price = max(found, off)
    return (price, kept) if found > off else (off, np.zeros(worth.shape, dtype=bool))


class PrefillPrice:
    """The price of time beside prefill, by how rare steps without it are, and whether arrivals are
    open.

    In an open loop the number of requests wanders: its change^2 is about the number of those that
    came and went. In a closed loop each that ends is followed by another, and it stays."""

    def __init__(self) -> None:
        self._share = 1.0  # of steps without prefill
        self._wandering = 2 * OPEN  # open, until a few readings say otherwise
        self._num_requests = self._num_ended = 0  # at the last reading, and since

    def of(self, price: float, view: BatchView, latency: Latency, token_seconds: float) -> float:
        """Return the tokens per second that time is worth in this step. price: of the same requests
        in a step of their own. token_seconds: that a token adds to the pass."""
        if not view.prefill_tokens:
            return price
        total, under_way = float(view.weights.sum()), view.num_rows + view.num_prefills
        num = min(under_way + view.num_waiting, 2 * under_way)  # of a longer queue, some have left
        context = (view.total_context_tokens + view.prefill_context_tokens) // under_way
        later = BatchView(np.arange(num), np.full(num, context), np.zeros(num, dtype=np.int64))
        seconds = latency.off_seconds(later) + latency.host_seconds
        price = max(price, num * total / view.num_rows / seconds)
        if self._wandering > OPEN:
            return price
        return 1.0 / (self._share / price + (1.0 - self._share) * min(token_seconds, 1.0 / price))

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished step."""
        view = outcome.view
        if view.num_rows:
            self._share += SHARE_FADE * (float(not view.prefill_tokens) - self._share)
        num_requests = view.num_rows + view.num_prefills + view.num_waiting
        if self._num_ended >= max(2, num_requests / 2):
            change = num_requests - self._num_requests
            num_moves = self._num_ended + max(self._num_ended + change, 0)
            self._wandering += WANDERING_FADE * (min(change**2 / num_moves, 1.0) - self._wandering)
            self._num_ended = 0
        if not self._num_ended:
            self._num_requests = num_requests

    def end(self) -> None:
        """Learn that a request has ended."""
        self._num_ended += 1


class DraftPrefill:
    """Whether a draft prefill pays, by the tokens that a request still generates: all have one
    hazard rate, ended requests over generated tokens, both fading."""

    def __init__(self) -> None:
        self._made, self._ended = ANSWER * NUM_ANSWERS, NUM_ANSWERS
        self._ids = np.zeros(0, dtype=np.int64)  # of the last step

    def seconds(self, view: BatchView, candidate: Candidate, latency: Latency) -> np.ndarray:
        """Return the seconds of the draft prefill of each row that is late, by its lag: float
        [R]."""
        if candidate.late is None:
            return np.zeros(view.num_rows)
        lag = candidate.lag * candidate.late
        drafter = np.where(lag > 0, candidate.drafter, -1)
        usual = view.with_lags_up_to(candidate.estimates.max_draft_tokens + 1)
        late, up_to_date = (latency.draft_seconds(each, drafter, 1).sum() for each in (view, usual))
        return lag * ((late - up_to_date) / lag.sum())

    def pays(
        self, candidate: Candidate, kept: np.ndarray, price: float, costs: Costs, late: np.ndarray
    ) -> np.ndarray:
        """Return False for late rows whose draft prefill costs more than its drafts bring, beyond
        their own price, over the steps that the request still lives: bool [R].

        kept: bool [R, K], the tokens that would be kept. price: of time. late: float [R], seconds
        of the draft prefill of each row that is late, else 0."""
        accepted, lengths = (candidate.worth * kept).sum(axis=1), kept.sum(axis=1)
        of_token = costs.of_drafts(kept, candidate.depths) / max(int(lengths.sum()), 1)
        steps = np.minimum(self._made / self._ended / (1.0 + accepted), ANSWER)
        gains = (accepted - price * of_token * lengths) * steps
        return (late == 0.0) | (gains >= price * late)

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished step."""
        self._ids = outcome.view.request_ids
        self._made += outcome.view.num_rows + int(outcome.accepted.sum())

    def end(self, request_id: int) -> None:
        """Learn that a request has ended; nothing where it was not decoding."""
        if request_id in self._ids:
            self._made *= 1.0 - FADE
            self._ended = self._ended * (1.0 - FADE) + 1.0
