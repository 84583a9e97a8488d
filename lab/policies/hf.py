"""The heuristic of Hugging Face transformers' assisted generation: +2 after full acceptance, else
-1."""

from dataclasses import replace

import numpy as np

from lab.policies.request_table import RequestTable
from smartspec.control.estimates import Estimates
from smartspec.control.planning import plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Outcome, Plan, StopRule

START_LENGTH = 20
STEP_UP, STEP_DOWN, MIN_LENGTH = 2, 1, 1


class HuggingFace(Policy):
    """Length per request: start at 20, +2 if every draft token was accepted, else -1, at least 1.

    confidence_threshold: where given, drafts of the draft model also end after a token of smaller
    largest probability (the library's own default is 0.4; 0: never). Departures: the library serves
    one sequence, here each request has its length; it lets lengths grow without limit, here they
    stop at the longest draft, so that they need no hundred rejections to come back.
    """

    def __init__(self, confidence_threshold: float = 0.0):
        self.confidence_threshold = confidence_threshold
        self._requests = RequestTable(length=START_LENGTH)

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        rows, lengths = self._requests.rows(view.request_ids), self._requests["length"]
        lengths[rows] = np.minimum(lengths[rows], estimates.max_draft_tokens)
        plan = plan_of_lengths(view, estimates, lengths[rows])
        return (
            replace(plan, stop=stop_below(self.confidence_threshold))
            if self.confidence_threshold
            else plan
        )

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        rows, lengths = self._requests.rows(outcome.view.request_ids), self._requests["length"]
        longer, shorter = lengths[rows] + STEP_UP, np.maximum(lengths[rows] - STEP_DOWN, MIN_LENGTH)
        adapted = np.where(outcome.accepted == outcome.verified, longer, shorter)
        lengths[rows] = np.where(outcome.verified > 0, adapted, lengths[rows])

    def end(self, request_id: int) -> None:
        self._requests.forget(request_id)


def stop_below(threshold: float) -> StopRule:
    """Stop after a token that was drawn from a distribution of smaller largest probability."""

    def stop(
        depth: int, rows: np.ndarray, confidence: np.ndarray, entropy: np.ndarray
    ) -> np.ndarray:
        return confidence < threshold

    return stop
