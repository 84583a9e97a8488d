"""The planner told the truth: what any controller could reach at most by choosing lengths step by step."""

from collections.abc import Callable

from smartspec.control.policies.base import Estimates, Policy
from smartspec.control.policies.choice import best_choice
from smartspec.control.records import BatchView, DraftPlan


class Oracle(Policy):
    """The exact plan for the true acceptance and the true time, with no margin, guard or probe.

    truth: the true Estimates of a step; only a simulator has them. Whatever was drafted is verified: the oracle knows
    acceptance before drafting, and does not look at confidence.
    """

    def __init__(self, truth: Callable[[BatchView], Estimates]):
        self._truth = truth

    def plan_draft(self, view: BatchView, estimates: Estimates) -> DraftPlan:
        return best_choice(view, self._truth(view)).draft_plan
