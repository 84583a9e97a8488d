"""Trees of one shape for all requests: EAGLE-2's fixed budget (arXiv 2406.16858), and DDD's rule
for its depth (arXiv 2409.00142, algorithm 1 and section 3.2)."""

import math
from dataclasses import replace

import numpy as np

from lab.policies.baseline import trees_of
from smartspec.control.estimates import Estimates
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Plan, StopRule

NUM_NODES, WIDTH = 60, 10  # EAGLE-2's published constants
EAGLE2_PASSES = 8  # one for the text, seven after it
DDD_PASSES = 11
DDD_CHECKS = (5, 7, 9)  # passes after which the beam is looked at
BEAM_THRESHOLD = math.exp(-0.3)


class Eagle2(Policy):
    """The best num_nodes nodes of a tree that is expanded for 8 passes, 10 nodes each; whatever the
    load.

    Departures: the number of nodes is limited by the longest draft of the server. Drafters with
    passes that make no trees draft a chain of 8; model-free drafts are used up to the same number
    of nodes.
    """

    def __init__(self, num_nodes: int = NUM_NODES):
        self.num_nodes = num_nodes

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        return trees_of(view, estimates, self.num_nodes, EAGLE2_PASSES, WIDTH)


class DynamicDepth(Policy):
    """EAGLE-2's trees of up to 11 passes, which end after the 5th, 7th or 9th where the probability
    of the beam, exp(H) of the paper, is below a threshold, exp(-0.3) as published.

    The rest as in Eagle2.
    """

    def __init__(self, threshold: float = BEAM_THRESHOLD):
        self.threshold = threshold

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        plan = trees_of(view, estimates, NUM_NODES, DDD_PASSES, WIDTH)
        return replace(plan, stop=stop_at_beam(self.threshold, view.num_rows))


def stop_at_beam(threshold: float, num_rows: int) -> StopRule:
    """A rule for one step: the product of confidences so far < threshold, at the depths of
    DDD_CHECKS. Unknown confidence counts as sure."""
    beam = np.ones(num_rows)

    def stop(
        depth: int, rows: np.ndarray, confidence: np.ndarray, entropy: np.ndarray
    ) -> np.ndarray:
        beam[rows] *= np.nan_to_num(confidence, nan=1.0)
        return (beam[rows] < threshold) & (depth + 1 in DDD_CHECKS)

    return stop
