"""Policies: from what is expected of drafts and time to how many draft tokens each request gets.

A policy is a function (view, survival_offer, survival_model, latency) -> DraftPlan. survival_offer, survival_model:
float [R, K], the probability that the first j draft tokens of the offer, or of the draft model, are all accepted;
survival_model is None without a draft model. Every policy speculates without loss: lengths depend on load and
history, never on tokens that were sampled.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from smartspec.control.latency import LatencyModel
from smartspec.control.planner import LengthPlan, plan_lengths
from smartspec.control.records import BatchView, DraftPlan

Policy = Callable[[BatchView, np.ndarray, np.ndarray | None, LatencyModel], DraftPlan]

ALLOWED = "goodput, off, fixed:K (K a number of draft tokens, for example fixed:4)"

# Picking the best of many noisy predictions is biased towards those that are too rosy, while "off" is a single one,
# measured best. A predicted gain below this is not worth the risk of falling behind plain decoding.
MIN_GAIN = 0.01


def parse_policy(name: str, max_draft_tokens: int | None = None) -> Policy:
    """The policy of that name. ValueError if there is none, or if fixed:K asks for more than max_draft_tokens."""
    if name == "goodput":
        return plan_goodput
    if name == "off":
        return plan_off
    kind, _, length = name.partition(":")
    if kind != "fixed" or not (length.isascii() and length.isdigit()):
        raise ValueError(f"unknown policy {name!r}: use one of {ALLOWED}")
    if max_draft_tokens is not None and int(length) > max_draft_tokens:
        raise ValueError(f"policy {name!r} asks for more than the {max_draft_tokens} draft tokens allowed per request")
    return partial(plan_fixed, int(length))


def no_drafts(num_rows: int) -> DraftPlan:
    """Plain decoding."""
    return DraftPlan(lengths=np.zeros(num_rows, dtype=np.int64), use_model=np.zeros(num_rows, dtype=bool))


def plan_off(
    view: BatchView, survival_offer: np.ndarray, survival_model: np.ndarray | None, latency: LatencyModel
) -> DraftPlan:
    """Never speculate."""
    return no_drafts(view.num_rows)


def plan_fixed(
    length: int, view: BatchView, survival_offer: np.ndarray, survival_model: np.ndarray | None, latency: LatencyModel
) -> DraftPlan:
    """The same length for every request as far as possible; the offer where there is one, else the draft model."""
    use_model = (view.offers.lengths == 0) & (survival_model is not None)
    lengths = np.minimum(_caps(view, use_model, survival_offer.shape[1]), length)
    return DraftPlan(lengths=lengths, use_model=use_model & (lengths > 0))


def plan_goodput(
    view: BatchView, survival_offer: np.ndarray, survival_model: np.ndarray | None, latency: LatencyModel
) -> DraftPlan:
    """The lengths of largest predicted goodput, or no drafts where the gain over plain decoding is below MIN_GAIN."""
    best, best_use_model = None, None
    for use_model in _source_choices(view, survival_offer, survival_model):
        plan = _best_lengths(view, use_model, survival_offer, survival_model, latency)
        if best is None or plan.goodput > best.goodput:
            best, best_use_model = plan, use_model
    if best.goodput < (1.0 + MIN_GAIN) * best.off_goodput:
        return no_drafts(view.num_rows)
    return DraftPlan(lengths=best.lengths, use_model=best_use_model & (best.lengths > 0))


def _source_choices(view: BatchView, survival_offer: np.ndarray, survival_model: np.ndarray | None) -> list[np.ndarray]:
    """Which rows would use the draft model: bool [R] each. Offers first, as they are free; or what yields more."""
    if survival_model is None:
        return [np.zeros(view.num_rows, dtype=bool)]
    offers_first = view.offers.lengths == 0
    max_draft_tokens = survival_offer.shape[1]
    by_yield = _expected_accepted(survival_model, _caps(view, True, max_draft_tokens)) > _expected_accepted(
        survival_offer, _caps(view, False, max_draft_tokens)
    )
    return [offers_first] if (offers_first == by_yield).all() else [offers_first, by_yield]


def _best_lengths(
    view: BatchView,
    use_model: np.ndarray,
    survival_offer: np.ndarray,
    survival_model: np.ndarray | None,
    latency: LatencyModel,
) -> LengthPlan:
    """The planner's answer when each row's source is given."""
    survival = survival_offer
    if survival_model is not None:
        survival = np.where(use_model[:, None], survival_model, survival_offer)
    max_draft_tokens = survival.shape[1]
    caps = _caps(view, use_model, max_draft_tokens)
    return plan_lengths(
        survival,
        caps,
        np.ones(view.num_rows),
        use_model,
        latency.draft_seconds(view, use_model, max_draft_tokens),
        latency.target_seconds(view, np.arange(caps.sum() + 1)),
        latency.host_seconds,
    )


def _caps(view: BatchView, use_model: np.ndarray | bool, max_draft_tokens: int) -> np.ndarray:
    """Longest draft of each row from that source: int [R]."""
    caps = np.clip(view.max_draft_tokens, 0, max_draft_tokens)
    return np.where(use_model, caps, np.minimum(caps, view.offers.lengths))


def _expected_accepted(survival: np.ndarray, caps: np.ndarray) -> np.ndarray:
    return (survival * (np.arange(survival.shape[1]) < caps[:, None])).sum(axis=1)
