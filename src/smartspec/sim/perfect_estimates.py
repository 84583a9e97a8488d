"""The goodput policy with true estimates, greedy in the step. It is no upper bound: it does not
look ahead."""

from collections.abc import Callable

from smartspec.control import BatchView, Estimates, Plan
from smartspec.control.goodput.policy import Goodput, GoodputSettings


class PerfectEstimates(Goodput):
    """The plan for the true acceptance and the true time, without trials and without a guard.

    ground_truth: the true Estimates of a step; only a simulator has them. Everything drafted is
    verified: acceptance is known before drafting, and confidence is not used.
    """

    def __init__(self, ground_truth: Callable[[BatchView], Estimates]):
        super().__init__(settings=GoodputSettings(uses_confidence=False, share=0.0))
        self._ground_truth = ground_truth

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        return super().plan(view, self._ground_truth(view))
