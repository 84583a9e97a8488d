"""Which drafters to ask: looking for drafts and planning take time, whether or not any are worth verifying.

Those without passes are asked, or all; each of the two has an account in seconds. A step that asks pays for what that
takes, by measurement: the host's time of such steps less that of steps in which fewer are asked. It earns what its
drafts are expected to save (should they not, the guard stops them) beyond what those of fewer drafters do on average.
While drafts pay for it, every step asks. Where they do not, the account is soon empty; every step then adds the share
of its time that exploration may cost, and drafters are asked once that has paid for it: in every tenth or twentieth
step, in which the drafts of a text that has come to suit them fill the account again.

What may be saved up is the time of one step, as for exploration, and so much is there at the start. Where all are asked
and some have no passes, those alone are asked now and then, in two steps running: else nobody would know what they
would have saved, and at what price.
"""

from smartspec.control.goodput.choice import Settled
from smartspec.control.goodput.exploration import NUM_SIZES, size_of
from smartspec.control.goodput.settings import ExplorationSettings
from smartspec.control.latency.robust_mean import RobustMean
from smartspec.control.records import DrafterSpec, Outcome, Plan

LOOK_STEPS = 2  # what follows the target's pass is measured in the next step: only steps whose last was alike tell
SAVED_RATE = 1 / 64  # of learning what drafts without passes save
# Who is queried: nobody, the drafters without passes, or all.
NOBODY, MODEL_FREE, ALL = range(3)


class Asking:
    """Learns from every step. settings: of exploration, whose share of step time asking may cost beyond what it brings
    (0: every step asks), and whose spacings hold for looks at fewer drafters."""

    def __init__(self, settings: ExplorationSettings):
        self.credit = {MODEL_FREE: 0.0, ALL: 0.0}  # seconds, by who is queried
        self._share = settings.share
        self._sizes = [_Size(settings) for _ in range(NUM_SIZES)]
        self._last: int | None = None
        self._is_first = True
        self._drafters: tuple[DrafterSpec, ...] = ()

    @property
    def credit_by_name(self) -> dict[str, float]:
        """For people, in seconds."""
        return {"model_free": self.credit[MODEL_FREE], "all": self.credit[ALL]}

    def numbers(self, num_rows: int, drafters: tuple[DrafterSpec, ...]) -> frozenset[int]:
        """Which drafters to query in a step of so many decoding requests."""
        self._drafters = drafters
        level = self._level(num_rows, sorted(set(map(_least_level, drafters))))
        return frozenset(n for n, drafter in enumerate(drafters) if _least_level(drafter) <= level)

    def _level(self, num_rows: int, levels: list[int]) -> int:
        if not self._share:
            return levels[-1]
        size = self._sizes[size_of(num_rows)]
        due = [level for level in levels if self.credit[level] >= size.price(level)]
        if not due:
            return NOBODY
        return MODEL_FREE if len(levels) > 1 and due[-1] == ALL and size.looks_at_fewer() else due[-1]

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        """A step is over: what it took, and what its drafts were expected to save."""
        asked = max((_least_level(self._drafters[number]) for number in plan.queried or ()), default=NOBODY)
        saved_seconds = plan.settled.saved_seconds if isinstance(plan.settled, Settled) else 0.0
        num_rows, seconds = outcome.view.num_rows, outcome.seconds
        if not num_rows:
            return
        size = self._sizes[size_of(num_rows)]
        if asked:
            self.credit[asked] += size.gained(asked, saved_seconds) - size.price(asked)
        earned = seconds.total if self._is_first else self._share * seconds.total
        for level in self.credit:
            self.credit[level] = min(self.credit[level] + earned, max(seconds.total, size.price(level)))
        self._is_first = False
        if outcome.view.num_prefills:  # prompts keep the host busy too
            self._last = None
            return
        size.num_steps += 1
        if asked == self._last:
            size.host[asked].observe(seconds.host)
        self._last = asked


class _Size:
    """What is known of steps of a batch size. host: seconds of the host by who was asked."""

    def __init__(self, settings: ExplorationSettings):
        self.host = [RobustMean() for _ in (NOBODY, MODEL_FREE, ALL)]
        self.num_steps = 0
        self._saved, self._num_saved = 0.0, 0  # by drafts without passes where only those were asked, on average
        self._spacing, self._next_look = settings.first_spacing, settings.first_spacing
        self._longest_spacing = settings.longest_spacing

    def price(self, level: int) -> float:
        """Seconds that asking takes beyond asking fewer; all of the host's, and thus too much, until a step without it
        was measured."""
        fewer = next((self.host[less].mean for less in reversed(range(level)) if self.host[less].mean), 0.0)
        return max(self.host[level].mean - fewer, 0.0)

    def gained(self, asked: int, saved_seconds: float) -> float:
        """What those who were asked saved beyond what fewer would have."""
        if asked == ALL:
            return saved_seconds - self._saved
        self._num_saved += 1
        self._saved += max(SAVED_RATE, 1.0 / self._num_saved) * (saved_seconds - self._saved)
        return saved_seconds

    def looks_at_fewer(self) -> bool:
        """Whether it is time to; the spacing doubles behind the last step of a look."""
        past = self.num_steps - self._next_look
        if past >= LOOK_STEPS - 1:
            self._spacing = min(2 * self._spacing, self._longest_spacing)
            self._next_look = self.num_steps + self._spacing
        return past >= 0


def _least_level(drafter: DrafterSpec) -> int:
    """The least of NOBODY, MODEL_FREE and ALL that includes this drafter."""
    return ALL if drafter.has_passes else MODEL_FREE
