"""The budget: speculation may cost at most a small share of step time more than plain decoding.

Every step earns a small share of its time. All possible losses against plain decoding are paid from accounts, which
hold seconds:

* Queries. To search for drafts and to plan takes time of the host, even if no draft is worth verifying. A step that
  queries the drafters pays the measured price of a query. It earns the time that its drafts are expected to save, less
  the error that such expectations had lately, and never less than nothing: losses are judged by distrust. Where drafts
  pay, almost every step queries; a few do not, to measure the price. Where they do not, the account is soon empty. Then
  drafters are queried only when the share has paid for it.
* Explorations. A step that is not believed to be the best pays its expected loss. This account is separate, because
  queries that do not pay would leave nothing for explorations.
* Distrust. Expectations may be wrong. For example, a cost model may understate the time of a draft token, and explain
  slow steps by a slow machine. So measured times are compared, too. The passes of speculative steps are compared with
  those that plain decoding would have needed for the same tokens. The times of plain decoding come from plain steps
  that were measured lately. If speculative steps lose more than noise explains, all accounts are overdrawn.

While an account is overdrawn, decoding is plain. That ends when the share has paid the debt, or when half or twice as
many requests are under way. Each further debt takes twice as long to pay, up to a limit.

An account starts with the time of one step and holds at most that. Queries for a single request have an account of
their own, which holds the time of least_steps steps. The savings of a single request come by chance. An account that
is empty before their mean is known would stay empty. And batches, whose drafts often do not pay, would empty an account
that is shared.
"""

from collections import Counter, defaultdict

from smartspec.control.goodput.settings import BudgetSettings
from smartspec.control.latency.robust_mean import RobustMean
from smartspec.control.records import StepSeconds

_NO_SUMS = [0.0, 0.0, 0.0, 0.0, 0.0]


class Budget:
    """The accounts of losses against plain decoding, and the pauses of drafting."""

    def __init__(self, settings: BudgetSettings):
        self.for_queries: dict[bool, float] = {}  # seconds that may be lost; True: with a single request
        self.for_explorations = 0.0  # seconds that may be lost
        self.reason: str | None = None  # for which there are no drafts at present, None while there may be some
        self.num_trips = 0  # times that measured goodput spoke against drafts
        self._settings = settings
        self._pause, self._paused_size = settings.memory // 2, 0
        self._host: dict[tuple[int, bool], RobustMean] = defaultdict(RobustMean)  # by batch size; True: with a query
        self._num_steps: Counter[int] = Counter()  # by batch size
        self._queried = True  # the last step had a query or prefill
        self._off_ratio = {False: RobustMean(), True: RobustMean()}  # measured by predicted; True: with prefill
        self._invested = 0.0  # seconds of draft prefill that no step was charged yet
        # Fading sums over speculative steps: their number, seconds lost, squares of these, seconds of the passes, and
        # seconds that were expected to be saved and were not.
        self._sums: list[float] = _NO_SUMS

    def can_query(self, num_rows: int) -> bool:
        """True if a step of so many decoding requests can pay for queries. False in the steps that measure their
        price."""
        settings, size = self._settings, size_of(num_rows)
        if not settings.share:
            return True
        # Two steps, now and then, have no query, to measure its price. In the second one, nothing is learned from the
        # query before, so it alone shows the price.
        is_measurement = (self._num_steps[size] // 2 * 2 + 2) % settings.longest_spacing in (0, settings.memory)
        return self.for_queries.get(num_rows == 1, 0.0) >= self._query_seconds(size) and not is_measurement

    def pay(self, seconds: float) -> bool:
        """Pay an exploration that is expected to lose so many seconds. Return False, and pay nothing, if the account
        holds less."""
        if seconds > self.for_explorations:
            return False
        self.for_explorations -= max(seconds, 0.0)
        return True

    def settle(self, num_rows: int, seconds: StepSeconds, *, queried: bool, has_prefill: bool) -> None:
        """Update the accounts after a step of decoding requests, and after its comparison. queried: with a query."""
        size = size_of(num_rows)
        price = self._query_seconds(size) if queried else 0.0
        single, total = num_rows == 1, seconds.total
        share = self._settings.share * total
        earned = share if self.for_queries else total
        self.for_explorations = min(self.for_explorations + earned, total)
        most = total * self._settings.least_steps if single else total
        saved_up = self.for_queries[single] + share if single in self.for_queries else most
        self.for_queries[single] = min(saved_up - price, max(most, price))
        self._num_steps[size] += 1
        if self.reason is not None and abs(size - self._paused_size) > 1:  # losses there do not predict losses here
            self.for_explorations = max(self.for_explorations, 0.0)
            self.for_queries = {single: max(left, 0.0) for single, left in self.for_queries.items()}
        if self.for_explorations >= 0.0:
            self.reason = None
        # Prompts keep the host busy, too, and so does learning from queries of the step before.
        if not has_prefill and queried >= self._queried:
            self._host[size, queried].observe(seconds.host)
        self._queried = has_prefill or queried

    def observe_plain(self, ratio: float, has_prefill: bool) -> None:
        """Learn from a plain step. ratio: measured by predicted time of its passes."""
        self._off_ratio[has_prefill].observe(ratio)

    def spread(self, seconds: float, invested_seconds: float) -> float:
        """Return the seconds that a speculative step is compared by. seconds: of its passes. invested_seconds: the part
        of these that serves later drafts (draft prefill). This part is spread over as many speculative steps as are
        compared together."""
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
        """Compare a speculative step with plain decoding.

        seconds: of its passes, see spread. off_seconds: the prediction for the passes of plain decoding, for the same
        tokens. gained_steps: plain steps that its drafts made needless. saved_seconds: the expected saving of the
        drafts, 0 in an exploration."""
        settings = self._settings
        plain = (self._off_ratio[has_prefill].mean or 1.0) * off_seconds
        # The host's time is that of a step without a query. Otherwise queries would raise the worth of their drafts.
        lost = seconds - plain - gained_steps * self._plain_host_seconds(size_of(num_rows))
        # A step that takes twice as long does not do so because of its drafts.
        missed = saved_seconds + min(lost, plain) if saved_seconds else 0.0
        seen, fade = (1.0, lost, lost * lost, seconds, missed), 1.0 - 1.0 / settings.memory
        num, lost, squares, total, missed = self._sums = [
            fade * old + new for old, new in zip(self._sums, seen, strict=True)
        ]
        if saved_seconds and (single := num_rows == 1) in self.for_queries:
            self.for_queries[single] += max(saved_seconds - missed / max(num, settings.least_steps), 0.0)
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
        """The time of queries. It is all of the host's time until a step without them was measured."""
        return max(self._host[size, True].mean - self._host[size, False].mean, 0.0)

    def _plain_host_seconds(self, size: int) -> float:
        """The time of the host without a query, or with one where no step without was measured."""
        return self._host[size, False].mean or self._host[size, True].mean


def size_of(num_requests: int) -> int:
    """Return the class of a batch size: its log2, rounded. Servers often have 2^n requests, or one less."""
    return max((2 * int(num_requests) ** 2).bit_length() - 1, 0) // 2  # round(log2(n)), in a third of the time
