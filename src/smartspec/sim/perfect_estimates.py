"""The planner with true estimates, greedy in the step. It is no upper bound: it does not look ahead."""

from collections.abc import Callable

from smartspec.control.goodput.draft_prefill import Lifetime
from smartspec.control.goodput.prefill_price import PrefillPrice
from smartspec.control.goodput.prices import best_choice
from smartspec.control.goodput.settings import GoodputSettings
from smartspec.control.policy import Estimates, Policy
from smartspec.control.records import BatchView, Outcome, Plan


class PerfectEstimates(Policy):
    """The exact plan for the true acceptance and the true time, with no budget and no exploration.

    ground_truth: the true Estimates of a step; only a simulator has them. Everything drafted is verified: acceptance
    is known before drafting, and confidence is not used.
    """

    def __init__(self, ground_truth: Callable[[BatchView], Estimates]):
        self._ground_truth = ground_truth
        self._settings = GoodputSettings()
        self._lifetime = Lifetime(self._settings.draft_prefill)
        self._prefill_price = PrefillPrice(self._settings.prefill_price)

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        return best_choice(
            view,
            self._ground_truth(view),
            self._settings,
            remaining_tokens=self._lifetime.remaining_tokens,
            prefill_price=self._prefill_price,
        ).draft_plan

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        self._lifetime.observe(outcome)
        self._prefill_price.observe(outcome)

    def end(self, request_id: int) -> None:
        self._lifetime.request_ended(request_id)
        self._prefill_price.request_ended()
