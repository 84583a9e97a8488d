"""Whether a draft that is expected to lose is worth trying for what it teaches about the draft model.

While the draft model is off nothing is learned about it (offers are different: what they would have proposed can be
compared with the target's tokens for free). Two things may make better lengths gain:

* the estimate is wrong within its uncertainty: by three-point Gauss-Hermite quadrature, a log-odds error of +sqrt(3)
  standard deviations has weight 1/6, and only that side changes the decision;
* the workload has changed since anything was seen of it, the more likely the longer ago that is: then acceptance may be
  anything, and has an even chance of being good.

A probe is made only if what it may gain over some time ahead exceeds its price.
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
CHANGE_STEPS = 500  # steps after which a workload has changed with probability 1 - 1/e
GOOD_ACCEPTANCE = 0.8
SIZES = ((8, 2), (8, 1), (4, 1), (2, 1), (1, 1))  # (rows, length) of a probe


@dataclass(frozen=True)
class Probe:
    """price_seconds: time expected to be lost. value: expected gain of goodput from knowing, relative to no drafts."""

    draft_plan: DraftPlan
    price_seconds: float
    value: float


def plan_probe(
    view: BatchView,
    estimates: Estimates,
    off: LengthPlan,
    best: Callable[[Estimates], LengthPlan],
    max_credit_seconds: float,
    steps_since_evidence: int,
) -> Probe | None:
    """The probe to make, or None where knowing more would change nothing or not pay.

    off: the plan that drafts nothing; best: the planner, given other estimates. max_credit_seconds: most it may
    cost. steps_since_evidence: since a draft of the model was last verified.
    """
    if estimates.survival_model is None or estimates.acceptance is None:
        return None
    std = estimates.acceptance.log_odds_std(view, True)
    value = _value_of_knowing(view, estimates, std, off, best, steps_since_evidence)
    plans = [_probe_plan(view, estimates, std, num_rows, length) for num_rows, length in SIZES]
    prices = [_expected_loss(view, estimates, plan, off) for plan in plans]
    most = min(max_credit_seconds, value * HORIZON_STEPS * off.off_seconds)
    offers = [Probe(plan, price, value) for plan, price in zip(plans, prices, strict=True) if price <= most]
    # The most tokens for the money, even if that means saving up: eight rows at once hardly cost more than one.
    return max(offers, key=lambda probe: probe.draft_plan.lengths.sum() / max(probe.price_seconds, 1e-9), default=None)


def _value_of_knowing(
    view: BatchView,
    estimates: Estimates,
    std: np.ndarray,
    off: LengthPlan,
    best: Callable[[Estimates], LengthPlan],
    steps_since_evidence: int,
) -> float:
    def gain(survival: np.ndarray) -> float:
        return max(best(replace(estimates, survival_model=survival)).goodput / off.off_goodput - 1.0, 0.0)

    hoped = gain(estimates.acceptance.survival_shifted(view, True, SHIFT * std))
    good = GOOD_ACCEPTANCE ** np.arange(1, estimates.max_draft_tokens + 1)
    change = 1.0 - np.exp(-steps_since_evidence / CHANGE_STEPS)
    return float(WEIGHT * hoped + 0.5 * change * gain(np.broadcast_to(good, estimates.survival_model.shape)))


def _probe_plan(view: BatchView, estimates: Estimates, std: np.ndarray, num_rows: int, length: int) -> DraftPlan:
    """Short drafts by the model for the few rows it is known least about."""
    caps = np.minimum(length_caps(view, True, estimates.max_draft_tokens), length)
    # Catching up is paid per unseen token: rows that are nearly up to date teach as much for less.
    rows = np.lexsort((-np.round(std, 1), view.unseen_tokens))[:num_rows]
    lengths = np.zeros(view.num_rows, dtype=np.int64)
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
