"""What it costs to keep knowing: budgets of step time for steps that are not believed to be the best.

Two things can only be learned by doing them: what a plain step costs while every step speculates, and what a draft
model is worth while it is off. Each is bought from a credit that grows by a small share of all step time, at the
price of the time it is expected to lose. So it happens often where the two are close (cheap, and where a mistake is
likely) and rarely where one is far better.
"""

from dataclasses import dataclass

PROBE_SHARE = 0.003  # of step time may be spent on probes of a draft model
PLAIN_SHARE = 0.001  # and on plain steps: what the first has taught holds for long
MAX_CREDIT_STEPS = 1.0  # unspent credit is kept up to this many steps: exploring in bursts teaches little more


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
