"""The planner told the truth: what any controller could reach at most by choosing lengths step by step."""

from collections.abc import Callable

from smartspec.control.goodput.arrivals import Arrivals
from smartspec.control.goodput.choice import best_choice
from smartspec.control.goodput.fairness import fairness_of
from smartspec.control.goodput.prefill_price import PrefillPrice
from smartspec.control.goodput.remaining_tokens import RemainingTokens
from smartspec.control.policy import Estimates, Policy
from smartspec.control.records import BatchView, DraftPlan, StepFeedback


class Oracle(Policy):
    """The exact plan for the true acceptance and the true time, with no margin, guard or probe.

    truth: the true Estimates of a step; only a simulator has them. Whatever was drafted is verified: the oracle knows
    acceptance before drafting, and does not look at confidence.
    """

    def __init__(self, truth: Callable[[BatchView], Estimates]):
        self._truth = truth
        self._remaining_tokens = RemainingTokens()
        self._arrivals = Arrivals()
        self._prefill_price = PrefillPrice(self._arrivals)

    def plan_draft(self, view: BatchView, estimates: Estimates) -> DraftPlan:
        truth = self._truth(view)
        fairness, remaining = fairness_of(truth, self._arrivals), self._remaining_tokens.of(view)
        best = best_choice(view, truth, None, fairness, remaining, self._prefill_price)
        return best.draft_plan

    def observe(self, feedback: StepFeedback) -> None:
        self._remaining_tokens.observe(feedback)
        self._arrivals.observe(feedback.view)
        self._prefill_price.observe(feedback)

    def forget(self, request_id: int) -> None:
        self._remaining_tokens.request_ended(request_id)
        self._arrivals.request_ended()
