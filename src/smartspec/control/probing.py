"""Whether a draft that is expected to lose is worth trying for what it teaches about the draft model.

While the draft model is off nothing is learned about it (offers are different: what they would have proposed can be
compared with the target's tokens for free). The value of knowing is what better lengths would gain if acceptance turned
out high, by three-point Gauss-Hermite quadrature over the estimate's uncertainty: a log-odds error of +sqrt(3) standard
deviations has weight 1/6, and only that side changes the decision.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from smartspec.control.planner import LengthPlan
from smartspec.control.policies.base import Estimates, length_caps
from smartspec.control.records import BatchView, DraftPlan

SHIFT = 3**0.5  # standard deviations
WEIGHT = 1 / 6
HORIZON_STEPS = 200  # for how long what is learned is of use
MAX_ROWS = 8
MAX_LENGTH = 2


@dataclass(frozen=True)
class Probe:
    """price_seconds: time expected to be lost. possible_gain: goodput above plain decoding if acceptance is high."""

    draft_plan: DraftPlan
    price_seconds: float
    possible_gain: float


def plan_probe(
    view: BatchView, estimates: Estimates, off: LengthPlan, best: Callable[[Estimates], LengthPlan]
) -> Probe | None:
    """The probe to make, or None where knowing more would change nothing or not pay. off: the plan that drafts nothing;
    best: the planner, given other estimates."""
    if estimates.survival_model is None or estimates.acceptance is None:
        return None
    std = estimates.acceptance.log_odds_std(view, True)
    optimistic = estimates.acceptance.survival_shifted(view, True, SHIFT * std)
    hoped = best(replace(estimates, survival_model=optimistic))
    possible_gain = hoped.goodput / off.off_goodput - 1.0
    plan = _probe_plan(view, estimates, std)
    price = _expected_loss(view, estimates, plan, off)
    if not plan.lengths.any() or WEIGHT * possible_gain * HORIZON_STEPS * off.off_seconds <= price:
        return None
    return Probe(plan, price, possible_gain)


def _probe_plan(view: BatchView, estimates: Estimates, std: np.ndarray) -> DraftPlan:
    """Short drafts by the model for the few rows it is known least about."""
    caps = np.minimum(length_caps(view, True, estimates.max_draft_tokens), MAX_LENGTH)
    # Catching up is paid per unseen token: rows that are nearly up to date teach as much for less.
    order = np.lexsort((view.unseen_tokens, -np.round(std, 1)))
    lengths = np.zeros(view.num_rows, dtype=np.int64)
    rows = order[:MAX_ROWS]
    lengths[rows] = caps[rows]
    return DraftPlan(lengths=lengths, use_model=lengths > 0)


def _expected_loss(view: BatchView, estimates: Estimates, plan: DraftPlan, off: LengthPlan) -> float:
    """Seconds the probe takes beyond what its tokens would take without it."""
    num_tokens, depth = int(plan.lengths.sum()), int(plan.lengths.max(initial=0))
    is_drafted = np.arange(estimates.max_draft_tokens) < plan.lengths[:, None]
    emitted = view.weights.sum() + float((view.weights[:, None] * estimates.survival_model * is_drafted).sum())
    seconds = (
        float(estimates.latency.target_seconds(view, np.array([0, num_tokens]))[-1])
        + float(estimates.latency.draft_seconds(view, plan.use_model, depth)[-1])
        + estimates.latency.host_seconds
    )
    return seconds - emitted / off.off_goodput
