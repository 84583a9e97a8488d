"""What may be lost against plain decoding: paid from a small share of step time, and judged.

A step that queries the drafters for drafts pays what that takes and earns what they save. A trial,
a step that is not believed to be the best, pays what it is expected to lose. The guard compares
measured speculative steps with measured plain ones, and pauses drafts where they lose.
"""

from collections import Counter, defaultdict

from smartspec.control.latency.robust_mean import RobustMean
from smartspec.control.policy import LEARN_STEPS
from smartspec.control.records import StepSeconds

MEMORY = 64  # speculative steps that are judged together, and steps between two trials
LEAST_STEPS = MEMORY / 3  # that are enough to judge
# The longest pause, in steps. Of half as many, two have no queries, so that these have a price.
LONGEST = 16 * MEMORY
TOLERANCE, SIGNIFICANCE = 0.02, 2.0  # a loss of less, or of fewer standard errors, is noise


def size_of(num_requests: int) -> int:
    """Return the class of a batch size: its log2, rounded. Servers often have 2^n requests."""
    return max((2 * int(num_requests) ** 2).bit_length() - 1, 0) // 2


class Account:
    """Seconds that may be lost: a share of all step time, at most that of num_steps steps."""

    def __init__(self, share: float, num_steps: float = 1.0):
        self.share, self.seconds, self._num_steps, self._is_new = share, 0.0, num_steps, True

    def earn(self, step_seconds: float, saved_seconds: float = 0.0) -> None:
        """Add the share of a step, and what it saved, or take what it lost. The first step fills
        the account; there are no debts."""
        most = self._num_steps * step_seconds
        earned = self.share * step_seconds + saved_seconds
        self.seconds = most if self._is_new else min(max(self.seconds + earned, 0.0), most)
        self._is_new = False

    def pay(self, seconds: float) -> bool:
        """Pay if the account holds so many seconds; else return False."""
        if seconds > self.seconds:
            return False
        self.seconds -= max(seconds, 0.0)
        return True


class Trials:
    """Decides which steps are not the ones that are believed to be the best: of MEMORY steps at a
    batch size at most one."""

    def __init__(self, share: float):
        self.account = Account(share)
        self._num_steps: Counter[int] = Counter()  # since the last trial, by size of the batch
        self._num_trials: Counter[int] = Counter()

    def is_due(self, num_rows: int) -> bool:
        return self._num_steps[size_of(num_rows)] >= MEMORY

    def is_plain(self, num_rows: int) -> bool:
        """True if the next trial of a batch that drafts is a step without drafts: every second."""
        return self._num_trials[size_of(num_rows)] % 2 == 0

    def made(self, num_rows: int, is_made: bool) -> None:
        """Begin to count again; if nothing was worth a trial now, it is due again soon."""
        self._num_steps[size_of(num_rows)] = 0 if is_made else MEMORY // 2
        self._num_trials[size_of(num_rows)] += is_made

    def settle(self, num_rows: int, step_seconds: float) -> None:
        """Count a step, and earn its share."""
        self.account.earn(step_seconds)
        self._num_steps[size_of(num_rows)] += 1


class Queries:
    """Decides which steps query the drafters. The account lasts until their savings are known: for
    the steps that are learned from together."""

    def __init__(self, share: float):
        self.account = Account(share, LEARN_STEPS)
        self._host: dict[tuple[int, bool], RobustMean] = defaultdict(RobustMean)
        self._num_steps: Counter[int] = Counter()
        self._queried = True  # the last step was, or had prefill

    def can_query(self, num_rows: int) -> bool:
        """True if a step of so many decoding requests can pay. Two steps now and then have no
        queries, to measure their price: the second does not learn from queries of the first."""
        size = size_of(num_rows)
        is_measured = (self._num_steps[size] // 2 * 2 + 2) % (LONGEST // 2) in (0, MEMORY)
        return self.account.seconds >= self._price(size) and not is_measured

    def settle(self, num_rows: int, seconds: StepSeconds, saved: float, queried: bool) -> None:
        """Earn the seconds that a step saved, and pay for its queries."""
        size = size_of(num_rows)
        self.account.earn(seconds.total, saved)
        if queried:
            self.account.pay(min(self._price(size), self.account.seconds))
        self._num_steps[size] += 1
        if queried >= self._queried:
            self._host[size, queried].observe(seconds.host)
        self._queried = queried

    def _price(self, size: int) -> float:
        """All of the host's time until a step without queries was measured."""
        return max(self._host[size, True].mean - self._host[size, False].mean, 0.0)


class Guard:
    """Where speculative steps lose, drafts pause: for MEMORY / 2 steps, twice as many each further
    time, or until about a third or three times as many requests are under way (size_of)."""

    def __init__(self) -> None:
        self.num_trips, self._reason = 0, ""
        # Of plain steps, measured over predicted seconds; True: beside prefill.
        self._ratio = {False: RobustMean(), True: RobustMean()}
        self._sums = [0.0, 0.0, 0.0, 0.0]  # steps, seconds lost, their squares, seconds
        self._pause, self._left, self._size, self._invested = MEMORY // 2, 0, 0, 0.0

    def reason(self, num_rows: int) -> str | None:
        """Return why a step of so many requests has no drafts; None where it may have some."""
        is_paused = self._left > 0 and abs(size_of(num_rows) - self._size) <= 1
        return self._reason if is_paused else None

    @property
    def pause(self) -> str | None:
        """Why there are no drafts at present."""
        return self._reason if self._left else None

    def observe_plain(self, seconds: float, predicted: float, has_prefill: bool) -> None:
        """Learn from a step without drafts."""
        self._ratio[has_prefill].observe(seconds / predicted)
        self._left = max(self._left - 1, 0)

    def compare(
        self, num_rows: int, seconds: float, plain: float, invested: float, has_prefill: bool
    ) -> float:
        """Judge a speculative step; return the seconds that it saved. plain: seconds that plain
        decoding is predicted to take for the same tokens. invested: seconds of a draft prefill,
        which serves later steps too."""
        self._invested += invested
        share = self._invested / MEMORY
        self._invested -= share
        plain *= self._ratio[has_prefill].mean or 1.0
        # A step that takes twice as long does not do so because of its drafts.
        lost = min(seconds - invested + share - plain, plain)
        of_step = zip(self._sums, (1.0, lost, lost * lost, seconds), strict=True)
        self._sums = [(1 - 1 / MEMORY) * sum_before + new for sum_before, new in of_step]
        num, total, squares, time = self._sums
        deviation = max(squares - total * total / num, 0.0) ** 0.5
        is_known = num >= LEAST_STEPS and any(ratio.mean for ratio in self._ratio.values())
        if is_known and total > max(TOLERANCE * time, SIGNIFICANCE * deviation):
            self._reason = (
                f"the last {num:.0f} speculative steps lost {total / time:.1%} of their time "
                f"against plain decoding: no drafts for {self._pause} steps"
            )
            self._left, self._pause = self._pause, min(2 * self._pause, LONGEST)
            self._sums, self._size = [0.0, 0.0, 0.0, 0.0], size_of(num_rows)
            self.num_trips += 1
        return -lost
