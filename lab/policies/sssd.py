"""SSSD's budget: as many draft tokens as the machine computes while it reads its weights (arXiv
2411.05894; constants from the authors' code, model_free_utils.py of huawei-csl/sglang-sssd)."""

import numpy as np

from lab.policies.adaserve import knee
from lab.policies.baseline import trees_of
from smartspec.control.estimates import Estimates
from smartspec.control.planning import no_drafts
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Plan

MAX_RATIO = 192
RATIOS = 16 * np.array([1, 2, 3, 4, 6, 8, 10, 12, 16, 24])
# tokens of a request, its own next one included
BUDGETS = np.array([2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32])
CAPS = ((1, 32), (3, 64), (6, 96))  # up to so many requests: tokens of all of them
LARGE_CAP = 512
DEPTHS = ((8, 5), (32, 6), (48, 8))  # up to so many tokens: the longest branch
LARGE_DEPTH, MAX_WIDTH = 10, 5


class Sssd(Policy):
    """Every request gets min(ratio // requests, cap) tokens, ratio being arithmetic per byte of
    memory. More tokens than that cost time, fewer leave the processor idle. Nothing is learned.

    ratio: of the machine; None takes the knee of the profile, where the paper divides measured
    operations by measured bandwidth, at most 192. Departures: drafts come from the drafters of the
    engine instead of a suffix array; heads make trees of that budget, draft models chains of its
    longest branch.
    """

    def __init__(self, ratio: int | None = None):
        self.ratio = ratio

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        if self.ratio is None:
            self.ratio = min(knee(estimates.latency), MAX_RATIO)
        budget = token_budget(self.ratio, view.num_rows)
        if budget < BUDGETS[0]:
            return no_drafts(view.num_rows)
        return trees_of(
            view, estimates, budget - 1, branch_length(budget), min(MAX_WIDTH, budget - 1)
        )


def token_budget(ratio: int, num_rows: int) -> int:
    """Tokens that the target is fed for each request, its own next one included; 0 where there is
    no room for a draft. ratio and the result are rounded down to the sizes that the authors use."""
    ratio = _round_down(RATIOS, ratio) or ratio
    cap = next((total for most, total in CAPS if num_rows <= most), LARGE_CAP)
    return _round_down(BUDGETS, min(ratio, cap) // max(num_rows, 1))


def branch_length(budget: int) -> int:
    """The deepest branch of a draft of so many tokens."""
    if budget <= MAX_WIDTH:
        return budget - 1
    return next((depth for most, depth in DEPTHS if budget <= most), LARGE_DEPTH)


def _round_down(sizes: np.ndarray, value: int) -> int:
    """The largest of these ascending sizes that is not above the value, 0 where there is none."""
    fitting = sizes[sizes <= value]
    return int(fitting[-1]) if len(fitting) else 0
