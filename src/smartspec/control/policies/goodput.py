"""The lengths of largest predicted goodput, for every request of a step."""

import numpy as np

from smartspec.control.planner import LengthPlan, plan_lengths
from smartspec.control.policies.base import Estimates, Latency, Policy, length_caps, no_drafts
from smartspec.control.records import BatchView, Drafted, DraftPlan

# Picking the best of many noisy predictions is biased towards those that are too rosy, while "off" is a single one,
# measured best. A predicted gain below this is not worth the risk of falling behind plain decoding.
MIN_GAIN = 0.01


class Goodput(Policy):
    """Maximises expected (weighted) tokens per second of step time; no drafts where they gain less than MIN_GAIN."""

    def plan_draft(self, view: BatchView, estimates: Estimates) -> DraftPlan:
        best, best_use_model = None, None
        for use_model in _source_choices(view, estimates):
            plan = _best_lengths(view, use_model, estimates)
            if best is None or plan.goodput > best.goodput:
                best, best_use_model = plan, use_model
        if best.goodput < (1.0 + MIN_GAIN) * best.off_goodput:
            return no_drafts(view.num_rows)
        return DraftPlan(lengths=best.lengths, use_model=best_use_model & (best.lengths > 0))

    def plan_verify(
        self, view: BatchView, plan: DraftPlan, drafted: Drafted, survival: np.ndarray, latency: Latency
    ) -> np.ndarray:
        """What is worth verifying now that the drafts are there: their cost is spent, their confidence known."""
        if drafted.confidence is None or not drafted.lengths.any():
            return drafted.lengths
        max_depth = int(np.where(plan.use_model, drafted.lengths, 0).max(initial=0))
        spent = float(latency.draft_seconds(view, plan.use_model, max_depth)[-1]) if max_depth else 0.0
        return plan_lengths(
            survival,
            drafted.lengths,
            view.weights,
            np.zeros(view.num_rows, dtype=bool),
            np.array([spent]),
            latency.target_seconds(view, np.arange(drafted.lengths.sum() + 1)),
            latency.host_seconds,
        ).lengths


def _source_choices(view: BatchView, estimates: Estimates) -> list[np.ndarray]:
    """Which rows would use the draft model: bool [R] each. Offers first, as they are free; or what yields more."""
    if estimates.survival_model is None:
        return [np.zeros(view.num_rows, dtype=bool)]
    offers_first = view.offers.lengths == 0
    max_draft_tokens = estimates.max_draft_tokens
    by_yield = _expected_accepted(
        estimates.survival_model, length_caps(view, True, max_draft_tokens)
    ) > _expected_accepted(estimates.survival_offer, length_caps(view, False, max_draft_tokens))
    return [offers_first] if (offers_first == by_yield).all() else [offers_first, by_yield]


def _best_lengths(view: BatchView, use_model: np.ndarray, estimates: Estimates) -> LengthPlan:
    """The planner's answer when each row's source is given."""
    survival = estimates.survival_offer
    if estimates.survival_model is not None:
        survival = np.where(use_model[:, None], estimates.survival_model, survival)
    caps = length_caps(view, use_model, estimates.max_draft_tokens)
    num_considered = min(int(caps.sum()), view.draft_token_budget)
    return plan_lengths(
        survival,
        caps,
        view.weights,
        use_model,
        estimates.latency.draft_seconds(view, use_model, estimates.max_draft_tokens),
        estimates.latency.target_seconds(view, np.arange(num_considered + 1)),
        estimates.latency.host_seconds,
    )


def _expected_accepted(survival: np.ndarray, caps: np.ndarray) -> np.ndarray:
    return (survival * (np.arange(survival.shape[1]) < caps[:, None])).sum(axis=1)
