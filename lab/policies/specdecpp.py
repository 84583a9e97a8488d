"""SpecDec++: stop drafting when a rejection has become likely (arXiv 2405.19715)."""

from dataclasses import replace

import numpy as np

from smartspec.control.estimates import Estimates
from smartspec.control.planning import plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Plan, StopRule

THRESHOLD = 0.3  # of the authors' benchmark
MIN_LENGTH, MAX_LENGTH = 2, 20


class SpecDecPlusPlus(Policy):
    """Drafts of the draft model end where P(some token rejected) exceeds the threshold; 2 to 20
    tokens.

    A token's chance of acceptance is the drafter's confidence: of a head with an acceptance head
    what that says, else the largest probability of the distribution it was drawn from. Departures:
    both are known one pass earlier than the published head's answer, so the newest token counts
    too. Rows stop one by one; the others go on. Model-free drafts are used whole.
    """

    def __init__(self, threshold: float = THRESHOLD):
        self.threshold = threshold

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        plan = plan_of_lengths(view, estimates, MAX_LENGTH)
        return replace(plan, stop=stop_when_rejection_likely(self.threshold, view.num_rows))


def stop_when_rejection_likely(threshold: float, num_rows: int) -> StopRule:
    """A rule for one step: 1 - product of confidences so far > threshold. Unknown confidence counts
    as sure."""
    survival = np.ones(num_rows)

    def stop(
        depth: int, rows: np.ndarray, confidence: np.ndarray, entropy: np.ndarray
    ) -> np.ndarray:
        survival[rows] *= np.nan_to_num(confidence, nan=1.0)
        return (1.0 - survival[rows] > threshold) & (depth + 1 >= MIN_LENGTH)

    return stop
