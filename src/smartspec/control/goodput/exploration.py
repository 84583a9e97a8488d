"""What it costs to keep knowing: budgets of step time for steps that are not believed to be the best.

Three things can only be learned by doing them: what a non-speculative step costs while every step speculates, what a
draft model is worth while it is off, and what tokens behind the present drafts are worth (the second token of drafts
that all have one; a larger pass than any of late). Each is bought from a credit that grows by a small share of all step
time, at the price of the time it is expected to lose. So it happens often where the two are close (cheap, and where a
mistake is likely) and rarely where one is far better.
"""

from dataclasses import dataclass

PROBE_SHARE = 0.003  # of step time may be spent on drafts that are expected to lose
NON_SPECULATIVE_SHARE = 0.001  # and on non-speculative steps: what the first has taught holds for long
MAX_CREDIT_STEPS = 1.0  # unspent credit is kept up to this many steps: exploring in bursts teaches little more
# Speculative steps at one batch size after which a kind of step is wanted again; grows every time. A non-speculative
# step costs a third of a step or more and tells the same again: at a growth of 2 the first 250 steps lost 0.3 % more.
FIRST_SPACING = 16
LONGEST_SPACING = 512
NON_SPECULATIVE_GROWTH = 4
LONGER_GROWTH = 2
NUM_SIZES = 12  # batch sizes are told apart by log2


@dataclass
class ExplorationBudget:
    """share: of step time that may be spent. credit: in seconds; None for the most that can be saved up, whatever steps
    will take: where a first look is worth its price."""

    share: float
    credit: float | None = 0.0

    def earn(self, step_seconds: float) -> None:
        most = self.max_credit(step_seconds)
        self.credit = most if self.credit is None else min(self.credit + self.share * step_seconds, most)

    @staticmethod
    def max_credit(step_seconds: float) -> float:
        """Most that can be saved up, in seconds, at steps of that length."""
        return MAX_CREDIT_STEPS * step_seconds

    def buy(self, price_seconds: float) -> bool:
        """Pay if there is enough credit. Free where nothing is expected to be lost."""
        if price_seconds > (self.credit or 0.0):
            return False
        self.credit = (self.credit or 0.0) - max(price_seconds, 0.0)
        return True


class Spacing:
    """When a kind of step is due again: after FIRST_SPACING speculative steps at a batch size without one, and growth
    times as many every time, up to LONGEST_SPACING."""

    def __init__(self, growth: int):
        self._growth = growth
        self._steps_since = [0] * NUM_SIZES
        self._spacing = [FIRST_SPACING] * NUM_SIZES

    def is_due(self, num_rows: int) -> bool:
        size = _size(num_rows)
        return self._steps_since[size] >= self._spacing[size]

    def planned(self, num_rows: int) -> None:
        """One is going to be made because it was due."""
        size = _size(num_rows)
        self._spacing[size] = min(self._growth * self._spacing[size], LONGEST_SPACING)
        self._steps_since[size] = 0

    def postponed(self, num_rows: int) -> None:
        """None is to be had, or for too much: ask again in a few steps."""
        self._steps_since[_size(num_rows)] -= FIRST_SPACING // 2

    def observe(self, num_rows: int, happened: bool) -> None:
        """A step is over; happened: it was of the kind, due or not."""
        size = _size(num_rows)
        self._steps_since[size] = 0 if happened else self._steps_since[size] + 1


def _size(num_rows: int) -> int:
    return min(max(num_rows, 1).bit_length() - 1, NUM_SIZES - 1)
