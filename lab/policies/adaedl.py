"""AdaEDL: stop drafting where the draft's entropy bounds acceptance too low (arXiv 2410.18351;
constants from the DSDE repository's version)."""

from dataclasses import replace

import numpy as np

from lab.policies.request_table import RequestTable
from smartspec.control.estimates import Estimates
from smartspec.control.planning import plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Outcome, Plan, StopRule

ENTROPY_FACTOR = 0.1
START_THRESHOLD = 0.5
TARGET_ACCEPTANCE = 0.9
THRESHOLD_STEP = 0.01
ACCEPTANCE_FADE = 0.5
THRESHOLD_FADE = 0.9
MAX_LENGTH = 20


class AdaEdl(Policy):
    """Drafts of the draft model end where 1 - sqrt(g * entropy) falls below a threshold that each
    request learns.

    The threshold aims at an acceptance of 0.9 of what was drafted: up by 0.01 below that, down by
    0.01 above it if the full length was drafted and accepted, smoothed by 0.9. Departure: the
    batched version this is taken from ends all drafts as soon as one row would stop, which wastes
    large batches; here rows stop one by one. Model-free drafts are used whole.
    """

    def __init__(self, entropy_factor: float = ENTROPY_FACTOR):
        self.entropy_factor = entropy_factor
        self._requests = RequestTable(threshold=START_THRESHOLD, acceptance=0.0)

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        plan = plan_of_lengths(view, estimates, MAX_LENGTH)
        rows = self._requests.rows(view.request_ids)
        stop = stop_at_entropy(self.entropy_factor, self._requests["threshold"][rows])
        return replace(plan, stop=stop, settled=estimates.has_passes(plan.drafter))

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        if plan.settled is None:  # no row could have a draft
            return
        learns = plan.settled & (outcome.drafted > 0)
        rows = self._requests.rows(outcome.view.request_ids[learns])
        drafted, accepted = outcome.drafted[learns], outcome.accepted[learns]
        acceptance, thresholds = self._requests["acceptance"], self._requests["threshold"]
        acceptance[rows] = (
            ACCEPTANCE_FADE * acceptance[rows] + (1 - ACCEPTANCE_FADE) * accepted / drafted
        )
        all_accepted = (accepted == drafted) & (drafted == outcome.plan.lengths[learns])
        falls = (acceptance[rows] > TARGET_ACCEPTANCE) & all_accepted
        direction = np.where(acceptance[rows] < TARGET_ACCEPTANCE, 1.0, np.where(falls, -1.0, 0.0))
        thresholds[rows] += (1 - THRESHOLD_FADE) * THRESHOLD_STEP * direction

    def end(self, request_id: int) -> None:
        self._requests.forget(request_id)


def acceptance_bound(entropy: np.ndarray, entropy_factor: float = ENTROPY_FACTOR) -> np.ndarray:
    """Lower bound of acceptance, 1 - sqrt(g * H), of a token drawn at entropy H (nats)."""
    return 1.0 - np.sqrt(entropy_factor * np.maximum(entropy, 0.0))


def stop_at_entropy(entropy_factor: float, thresholds: np.ndarray) -> StopRule:
    """Stop after a token whose bound is below its row's threshold (float [R]); never where entropy
    is unknown."""

    def stop(
        depth: int, rows: np.ndarray, confidence: np.ndarray, entropy: np.ndarray
    ) -> np.ndarray:
        return acceptance_bound(entropy, entropy_factor) < thresholds[rows]

    return stop
