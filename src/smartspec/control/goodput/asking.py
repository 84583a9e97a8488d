"""Whether to ask drafters at all: looking for drafts and planning take time, whether or not any are worth verifying.

An account in seconds. A step in which drafters are asked pays for what asking takes, by measurement: the host's time of
such steps less that of steps in which nobody is asked. It earns what its drafts are expected to save (should they not,
the guard stops them). While drafts pay for it, every step asks. Where they do not, the account is soon empty; every
step then adds the share of its time that exploration may cost, and drafters are asked once that has paid for it: in
every tenth or twentieth step, in which the drafts of a text that has come to suit them fill the account again.

What may be saved up is the time of one step, as for exploration, and so much is there at the start.
"""

from smartspec.control.goodput.exploration import NUM_SIZES, size_of
from smartspec.control.latency.robust_mean import RobustMean
from smartspec.control.records import StepFeedback


class Asking:
    """Learns from every step. share: of step time, what asking may cost beyond what it brings; 0: every step asks."""

    def __init__(self, share: float):
        self.credit = 0.0  # seconds
        self._share = share
        # Host seconds of steps in which nobody was asked, and in which drafters were. What follows the target's pass
        # is measured in the next step, so only steps whose last one was alike tell.
        self._host = [(RobustMean(), RobustMean()) for _ in range(NUM_SIZES)]
        self._last: bool | None = None
        self._is_first = True

    def is_due(self, num_rows: int) -> bool:
        """Whether to ask in a step of so many decoding requests."""
        return not self._share or self.credit >= self._price(num_rows)

    def observe(self, feedback: StepFeedback, asked: bool, saved_seconds: float) -> None:
        """A step is over. asked: whether drafters were; saved_seconds: what its drafts were expected to save."""
        num_rows, seconds = feedback.view.num_rows, feedback.seconds
        if not num_rows:
            return
        price = self._price(num_rows)
        if asked:
            self.credit += saved_seconds - price
        earned = seconds.total if self._is_first else self._share * seconds.total
        self.credit, self._is_first = min(self.credit + earned, max(seconds.total, price)), False
        if feedback.view.num_prefills:  # prompts keep the host busy too
            self._last = None
            return
        if asked == self._last:
            self._host[size_of(num_rows)][asked].observe(seconds.host)
        self._last = asked

    def _price(self, num_rows: int) -> float:
        """Seconds that asking takes; all of the host's, and thus too much, until a step without it was measured."""
        without, asked = self._host[size_of(num_rows)]
        return max(asked.mean - without.mean, 0.0)
