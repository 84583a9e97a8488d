"""Trees of one shape for all requests: EAGLE-2's fixed budget (arXiv 2406.16858), and DDD's rule for its depth (arXiv
2409.00142)."""

from dataclasses import replace

import numpy as np

from smartspec.control.policy import Estimates, Policy, model_free_first, plan_of_lengths
from smartspec.control.records import BatchView, Plan, StopRule

NUM_NODES, WIDTH = 60, 10  # EAGLE-2's published constants
EAGLE2_PASSES = 8  # one for the text, seven after it
DDD_PASSES = 11
BEAM_THRESHOLD = 0.4


class Eagle2(Policy):
    """The best num_nodes nodes of a tree that is expanded for 8 passes, 10 nodes each; whatever the load.

    Departures: the number of nodes is limited by the longest draft of the server. Drafters with passes that make no
    trees draft a chain of 8; model-free drafts are used up to the same number of nodes.
    """

    def __init__(self, num_nodes: int = NUM_NODES):
        self.num_nodes = num_nodes

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        return fixed_trees(view, estimates, self.num_nodes, EAGLE2_PASSES)


class DynamicDepth(Policy):
    """EAGLE-2's trees of up to 11 passes, which end where the probability of the beam, exp(H) of the paper, falls below
    a threshold.

    Departures: the published threshold was not found; 0.4 is ours. The paper looks at a few depths only, as each look
    makes the processor wait for the GPU; here every pass is followed by one. The rest as in Eagle2.
    """

    def __init__(self, threshold: float = BEAM_THRESHOLD):
        self.threshold = threshold

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        plan = fixed_trees(view, estimates, NUM_NODES, DDD_PASSES)
        return replace(plan, stop=stop_at_beam(self.threshold, view.num_rows))


def fixed_trees(view: BatchView, estimates: Estimates, num_nodes: int, num_passes: int) -> Plan:
    """Trees of WIDTH from the usual drafter of each row, as far as it makes trees."""
    drafter = model_free_first(view, estimates)
    makes_chains = np.array([each.has_passes and not each.makes_trees for each in estimates.drafters] + [False])
    lengths = np.where(makes_chains[drafter], min(num_nodes, num_passes), num_nodes)
    plan = plan_of_lengths(view, estimates, lengths)
    return replace(plan, depths=np.full(view.num_rows, num_passes), width=WIDTH)


def stop_at_beam(threshold: float, num_rows: int) -> StopRule:
    """A rule for one step: the product of confidences so far < threshold. Unknown confidence counts as sure."""
    beam = np.ones(num_rows)

    def stop(depth: int, rows: np.ndarray, confidence: np.ndarray, entropy: np.ndarray) -> np.ndarray:
        beam[rows] *= np.nan_to_num(confidence, nan=1.0)
        return beam[rows] < threshold

    return stop
