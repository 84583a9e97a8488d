"""Drafts that are expected to lose, for what they teach: probes of draft models that are off, and longer drafts.

While a draft model is off nothing is learned about it (model-free drafts are different: they can be compared with the
target's tokens for free). Two things may make better lengths gain:

* the estimate is wrong within its uncertainty: by three-point Gauss-Hermite quadrature, a log-odds error of +sqrt(3)
  standard deviations has weight 1/6, and only that side changes the decision;
* the workload has changed since anything was seen of it, the more likely the longer ago that is: then acceptance may be
  anything, and has an even chance of being good.

A probe is made only if what it may gain over some time ahead exceeds its price.

Drafts that are too short hide it: their next token is not tested, larger passes are not timed, and the estimate that
once spoke against them stays. (In one batch of 64 a few rejections by chance at the second token kept all drafts at one
for hundreds of steps.) So now and then drafts are as long as would be best if more of them were accepted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from smartspec.control.planner.lengths import LengthPlan
from smartspec.control.policy import Estimates, length_caps, no_drafts, plan_by
from smartspec.control.records import BatchView, DraftPlan

SHIFT = 3**0.5  # standard deviations
WEIGHT = 1 / 6
HORIZON_STEPS = 200  # for how long what is learned is of use
CHANGE_STEPS = 500  # steps after which a workload has changed with probability 1 - 1/e
GOOD_ACCEPTANCE = 0.8
HOPES = (0.7, 1.4, 2.8)  # log-odds: 0.5 becomes 0.67, 0.8, 0.94
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
    best: Callable[[Estimates], LengthPlan],
    value_of_time: float,
    max_credit_seconds: float,
    steps_since_tested: np.ndarray,
    uniform_lengths: tuple[int, ...] | None = None,
) -> Probe | None:
    """The probe to make, of any of the draft models, or None where knowing more would change nothing or not pay.

    best: the planner, given other estimates. value_of_time: tokens per second. max_credit_seconds: most it may cost.
    steps_since_tested: int [D], since a draft of each drafter was last verified. uniform_lengths: see goodput.Goodput.
    """
    if not estimates.models or estimates.acceptance is None or not value_of_time:
        return None
    std = estimates.acceptance.log_odds_std(view)
    # The one that knowing more about promises most; most hosts have one.
    hoped = estimates.acceptance.survival_shifted(view, SHIFT * std)
    values = {n: _value_of_knowing(estimates, n, hoped[n], best, steps_since_tested[n]) for n in estimates.models}
    drafter = max(values, key=values.__getitem__)
    value = values[drafter]
    sizes = SIZES if uniform_lengths is None else _uniform_sizes(view, uniform_lengths)
    plans = [_probe_plan(view, estimates, drafter, std, num_rows, length) for num_rows, length in sizes]
    loss = partial(expected_loss, view, estimates, goodput=value_of_time)
    without = loss(no_drafts(view.num_rows))  # in a mixed batch, more than nothing
    prices = [loss(plan) - without for plan in plans]
    off_seconds = float(view.weights.sum()) / value_of_time
    most = min(max_credit_seconds, value * HORIZON_STEPS * off_seconds)
    probes = [Probe(plan, price, value) for plan, price in zip(plans, prices, strict=True) if price <= most]
    probes = [probe for probe in probes if probe.draft_plan.lengths.any()]
    # The most tokens for the money, even if that means saving up: eight rows at once hardly cost more than one.
    return max(probes, key=lambda probe: probe.draft_plan.lengths.sum() / max(probe.price_seconds, 1e-9), default=None)


def _value_of_knowing(
    estimates: Estimates,
    drafter: int,
    hoped: np.ndarray,
    best: Callable[[Estimates], LengthPlan],
    steps_since_tested: int,
) -> float:
    def gain(survival_of_it: np.ndarray) -> float:
        survival = estimates.survival.copy()
        survival[drafter] = survival_of_it
        return max(best(replace(estimates, survival=survival)).gain, 0.0)

    good = GOOD_ACCEPTANCE ** np.arange(1, estimates.max_draft_tokens + 1)
    change = 1.0 - np.exp(-steps_since_tested / CHANGE_STEPS)
    return float(WEIGHT * gain(hoped) + 0.5 * change * gain(good))


def _probe_plan(
    view: BatchView, estimates: Estimates, drafter: int, std: np.ndarray, num_rows: int, length: int
) -> DraftPlan:
    """Short drafts by that drafter for the few rows it is known least about, as many as the step has room for."""
    by_it = np.full(view.num_rows, drafter)
    caps = np.minimum(length_caps(view, by_it, estimates.max_draft_tokens), length)
    # Draft prefill is paid per token: rows of little lag teach as much for less. Rows that may not draft are never
    # known and would come first.
    rows = np.lexsort((-np.round(std[drafter], 1), view.draft_lags[drafter], caps == 0))
    rows = rows[: min(num_rows, view.draft_token_budget // length)]
    lengths = np.zeros(view.num_rows, dtype=np.int64)
    lengths[rows] = caps[rows]
    return plan_by(by_it, lengths)


def _uniform_sizes(view: BatchView, lengths: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """As SIZES, where all rows draft one of these lengths or none does: the shortest, if there is room for it."""
    size = view.num_rows, min(lengths)
    return (size,) if size[0] * size[1] <= view.draft_token_budget else ()


def longer_drafts(
    view: BatchView, estimates: Estimates, than: DraftPlan, best: Callable[[Estimates], DraftPlan]
) -> DraftPlan | None:
    """The drafts that would be best if all tokens were accepted more often than they are believed to be: with as little
    of that as makes drafts longer together; None where none does. best: the planner, given other estimates."""
    if estimates.acceptance is None:
        return None
    for hope in HOPES:
        plan = best(replace(estimates, survival=estimates.acceptance.survival_shifted(view, hope)))
        if plan.lengths.sum() > than.lengths.sum():
            return plan
    return None


def expected_loss(view: BatchView, estimates: Estimates, plan: DraftPlan, goodput: float) -> float:
    """Seconds the step takes beyond what its tokens would take at that goodput (weighted tokens per second)."""
    num_tokens = int(plan.lengths.sum())
    depth = int(plan.lengths[estimates.has_passes(plan.drafter)].max(initial=0))
    is_drafted = np.arange(estimates.max_draft_tokens) < plan.lengths[:, None]
    survival = estimates.survival_of(plan.drafter)
    emitted = view.weights.sum() + float((view.weights[:, None] * survival * is_drafted).sum())
    seconds = (
        float(estimates.latency.target_seconds(view, np.array([0, num_tokens]))[-1])
        + float(estimates.latency.draft_seconds(view, plan.drafter, depth)[:, -1].sum())
        + estimates.latency.host_seconds
    )
    return seconds - emitted / goodput
