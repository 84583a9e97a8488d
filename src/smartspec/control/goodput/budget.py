"""The budget: speculation may cost at most a small share of step time more than plain decoding.

Every step earns a share of its time. All possible losses against plain decoding are paid from that:

* queries: looking for drafts and planning take time of the host, whether or not any draft is worth verifying. A step
  that queries the drafters pays what that takes, by measurement, and earns what its drafts are expected to save, less
  what such expectations were lately wrong by.
  Where drafts pay, every step queries but a few, which measure its price. Where they do not, their account is soon
  empty, and drafters are queried only when the share has paid for it.
* explorations: steps that are not believed to be best pay what they are expected to lose. Their account is one of its
  own, as queries that do not pay would leave nothing for them.
* distrust: expectations may be wrong. A cost model that understates a draft token explains slow steps by a slow
  machine. So measured values are compared, too: what passes of speculative steps took against what those of plain
  decoding would have taken for the same tokens, by plain steps measured lately. If they lose beyond noise, all accounts
  are overdrawn.

An overdrawn account means plain decoding until the share has paid the debt, twice as long every further time, or until
half or twice as many requests are under way.
What an account may save up is the time of one step; so much is there at the start. Queries for a single request have an
account of their own, of least_steps steps. What its drafts save comes by chance, and an account that is spent before
the mean is known stays so. Batches, whose drafts often do not pay, would spend a common one.
"""

from collections import Counter, defaultdict
from math import log2

from smartspec.control.goodput.settings import BudgetSettings
from smartspec.control.latency.robust_mean import RobustMean
from smartspec.control.records import StepSeconds

_NO_SUMS = (0.0, 0.0, 0.0, 0.0, 0.0)


class Budget:
    """for_queries (True: for a single request), for_explorations: seconds that may be lost. reason: why there are no
    drafts at present, None while there may be some. num_trips: how often measured goodput spoke against drafts."""

    def __init__(self, settings: BudgetSettings):
        self.for_queries: dict[bool, float] = {}
        self.for_explorations = 0.0
        self.reason: str | None = None
        self.num_trips = 0
        self._settings = settings
        self._pause, self._paused_size = settings.memory // 2, 0
        self._host: dict[tuple[int, bool], RobustMean] = defaultdict(RobustMean)  # by batch size, and whether queried
        self._num_steps: Counter[int] = Counter()  # by batch size
        self._queried = True  # the last step, or it had prefill
        self._off_ratio = {False: RobustMean(), True: RobustMean()}  # measured by predicted; True: with prefill
        self._invested = 0.0  # seconds of draft prefill that no step was charged yet
        self._sums: tuple[float, ...] = _NO_SUMS  # of speculative steps: number, seconds lost, squares, seconds, missed

    def may_query(self, num_rows: int) -> bool:
        """Whether a step of so many decoding requests can pay for queries."""
        settings, size = self._settings, size_of(num_rows)
        if not settings.share:
            return True
        # Now and then two steps do not, to measure the price: learning from a query is over in the second one.
        measures_price = (self._num_steps[size] // 2 * 2 + 2) % settings.longest_spacing in (0, settings.memory)
        return self.for_queries.get(num_rows == 1, 0.0) >= self._query_seconds(size) and not measures_price

    def buys(self, seconds: float) -> bool:
        """Whether an exploration may lose so much; it is then paid."""
        if seconds > self.for_explorations:
            return False
        self.for_explorations -= max(seconds, 0.0)
        return True

    def settle(self, num_rows: int, seconds: StepSeconds, *, queried: bool, has_prefill: bool) -> None:
        """A step of decoding requests is over, and compared."""
        size = size_of(num_rows)
        price = self._query_seconds(size) if queried else 0.0
        single, share = num_rows == 1, self._settings.share * seconds.total
        earned = share if self.for_queries else seconds.total
        self.for_explorations = min(self.for_explorations + earned, seconds.total)
        most = seconds.total * (self._settings.least_steps if single else 1.0)
        saved_up = self.for_queries[single] + share if single in self.for_queries else most
        self.for_queries[single] = min(saved_up - price, max(most, price))
        self._num_steps[size] += 1
        if self.reason is not None and abs(size - self._paused_size) > 1:  # what was lost there says nothing of here
            self.for_explorations = max(self.for_explorations, 0.0)
            self.for_queries = {single: max(left, 0.0) for single, left in self.for_queries.items()}
        if self.for_explorations >= 0.0:
            self.reason = None
        # Prompts keep the host busy, too, and so does learning from queries of the step before.
        if not has_prefill and queried >= self._queried:
            self._host[size, queried].observe(seconds.host)
        self._queried = has_prefill or queried

    def observe_plain(self, ratio: float, has_prefill: bool) -> None:
        """What the passes of a plain step took, relative to what was predicted."""
        self._off_ratio[has_prefill].observe(ratio)

    def spread(self, seconds: float, invested_seconds: float) -> float:
        """What a speculative step is compared by: the seconds of its passes, with what of them serves later drafts
        (draft prefill) spread over as many speculative steps as are compared together."""
        self._invested += invested_seconds
        share = self._invested / self._settings.memory
        self._invested -= share
        return max(seconds - invested_seconds, 0.0) + share

    def compare(
        self,
        num_rows: int,
        seconds: float,
        off_seconds: float,
        gained_steps: float,
        saved_seconds: float,
        has_prefill: bool,
    ) -> None:
        """What the passes of a speculative step took, and what those of plain decoding were predicted to take for the
        same tokens. gained_steps: plain steps that its drafts made needless. saved_seconds: what the drafts were
        expected to save, 0 in an exploration."""
        settings = self._settings
        plain = (self._off_ratio[has_prefill].mean or 1.0) * off_seconds
        # At the price of a step with a query, queries would raise the worth of what they find.
        lost = seconds - plain - gained_steps * self._plain_host_seconds(size_of(num_rows))
        # What took twice as long was not the drafts' doing.
        missed = saved_seconds + min(lost, plain) if saved_seconds else 0.0
        seen, fade = (1.0, lost, lost * lost, seconds, missed), 1.0 - 1.0 / settings.memory
        self._sums = tuple(fade * old + new for old, new in zip(self._sums, seen, strict=True))
        num, lost, squares, total, missed = self._sums
        if saved_seconds and (single := num_rows == 1) in self.for_queries:
            self.for_queries[single] += saved_seconds - missed / max(num, settings.least_steps)
        spread = max(squares - lost * lost / num, 0.0) ** 0.5
        is_known = num >= settings.least_steps and any(known.mean for known in self._off_ratio.values())
        least = max(settings.tolerance * total, settings.significance * spread)
        if is_known and settings.share and lost > least:
            self._overdraw(num, lost / total, seconds, size_of(num_rows))

    def _overdraw(self, num_steps: float, lost_share: float, step_seconds: float, size: int) -> None:
        self._paused_size = size
        self.for_explorations = -self._pause * self._settings.share * step_seconds
        self.for_queries = dict.fromkeys(self.for_queries, self.for_explorations)
        self.reason = (
            f"the last {num_steps:.0f} speculative steps lost {lost_share:.1%} of their time against plain decoding: "
            f"no drafts for {self._pause} steps"
        )
        self.num_trips += 1
        self._pause = min(2 * self._pause, 16 * self._settings.memory)
        self._sums = _NO_SUMS

    def _query_seconds(self, size: int) -> float:
        """What queries take: all of the host's time until a step without them was measured."""
        return max(self._host[size, True].mean - self._host[size, False].mean, 0.0)

    def _plain_host_seconds(self, size: int) -> float:
        """What the host takes without a query, or with one where none without was measured."""
        return self._host[size, False].mean or self._host[size, True].mean


def size_of(num_requests: int) -> int:
    """Batch sizes are told apart by log2, rounded: servers often have a power of two of requests, or one less."""
    return round(log2(max(num_requests, 1)))
