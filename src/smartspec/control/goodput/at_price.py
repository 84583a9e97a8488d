"""Lengths at a price that is known already.

The best plan of a step settles four things: the price of time, the time of a further token, the depth of drafts made in
passes, and whether found drafts go first. They hold until something is learned. Rows and found drafts differ from step
to step. So a batch is planned in full now and then. In the steps between, each row keeps the tokens that add more than
they cost at that price:

    gain[i, j] > price * seconds of a token

Gains never increase along a row. So at the price of the step itself this is the planner's optimum (Dinkelbach 1967: the
best ratio is the price at which the best difference is zero). Rows that came since are planned by the same inequality.
A row whose draft KV would have to be prefilled waits for a plan in full (see draft_prefill).
"""

from dataclasses import dataclass

import numpy as np

from smartspec.control.goodput.budget import size_of
from smartspec.control.goodput.draft_prefill import ordinary_lag
from smartspec.control.goodput.prices import Choice
from smartspec.control.planner.lengths import LengthPlan, objective, relative_gain
from smartspec.control.policy import Estimates, model_free_first
from smartspec.control.records import BatchView, of_drafter, with_fields


@dataclass(frozen=True)
class _Held:
    """A plan in full, and what it settles."""

    choice: Choice
    least_gain: float  # (weighted) tokens that a slot must add
    free_first: bool  # a row with a found draft takes that
    used: set[int]  # drafters that draft in that plan; the passes of others were not priced
    newest_id: int  # the largest of the requests in the batch
    num_learned: int  # see Estimates


class HeldPrices:
    """The plans in full that still hold, by batch size, separately for steps with prefill."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, bool], _Held] = {}

    def rows(self, view: BatchView, estimates: Estimates) -> tuple | None:
        """Return a key of the rows of a step and of those that can draft. As long as it is the same, and nothing is
        learned, the plan is the same. None where a drafter is model-free: its drafts differ from step to step."""
        if estimates.num_learned is None or len(estimates.models) < len(estimates.drafters):
            return None
        most_lag = ordinary_lag(estimates)
        can_draft = [((each.lengths > 0) & (each.lag <= most_lag)).tobytes() for each in view.drafters]
        rows = view.request_ids.tobytes(), (view.max_draft_tokens > 0).tobytes(), *can_draft
        return estimates.num_learned, view.prefill_tokens > 0, *rows

    def choice(self, view: BatchView, estimates: Estimates, *, is_uniform: bool) -> Choice | None:
        """Return the plan of a step at the price that holds; None where the step has to be planned in full."""
        held = self._held.get((size_of(view.num_rows), view.prefill_tokens > 0))
        if held is None or estimates.num_learned != held.num_learned:
            return None
        if _has_late_newcomer(view, estimates, held):
            return None
        choice = _at_price(view, estimates, held, is_uniform)
        return choice if choice.plan.num_draft_tokens <= view.draft_token_budget else None

    def keep(self, view: BatchView, estimates: Estimates, choice: Choice) -> None:
        """Keep the plan in full of a step. Where a draft prefill begins, others may wait for their turn: the next step
        is planned in full, too."""
        key = size_of(view.num_rows), view.prefill_tokens > 0
        if not view.num_rows or choice.invested_seconds or estimates.num_learned is None:
            self._held.pop(key, None)
            return
        free_first = bool((choice.drafter == model_free_first(view, estimates)).all())
        least_gain, newest_id = _least_gain(view, estimates, choice), int(view.request_ids.max())
        used = set(choice.draft_plan.drafter.tolist())
        self._held[key] = _Held(choice, least_gain, free_first, used, newest_id, estimates.num_learned)


def _has_late_newcomer(view: BatchView, estimates: Estimates, held: _Held) -> bool:
    """True if a request that came since might begin with a draft prefill."""
    is_new, most_lag = view.request_ids > held.newest_id, ordinary_lag(estimates)
    late = [is_new & (view.drafters[number].lag > most_lag) for number in estimates.models]
    return any([any(each.tolist()) for each in late])


def _least_gain(view: BatchView, estimates: Estimates, choice: Choice) -> float:
    """Return the gain that separates the tokens of a plan from the others. It is the price of a token, moved between
    the least gain in the plan and the largest that was left out for its gain."""
    plan = choice.plan
    price = choice.prices.time * choice.token_seconds
    gains = view.weights[:, None] * choice.survival
    positions = np.arange(gains.shape[1])
    kept = positions < plan.lengths[:, None]
    left_out = (positions < choice.caps[:, None]) & ~kept
    left_out &= estimates.of_width(choice.width).passes_of(choice.drafter) <= plan.depth
    most, least = float(gains.max(initial=0.0, where=left_out)), float(gains.min(initial=np.inf, where=kept))
    return min(max(price, most), float(np.nextafter(least, 0.0)))  # the least one must add more than that


def _at_price(view: BatchView, estimates: Estimates, held: _Held, is_uniform: bool) -> Choice:
    settled = held.choice
    shaped, depth = estimates.of_width(settled.width), settled.plan.depth
    of_each = _caps(view, shaped, held.used)
    drafter = _drafter(view, shaped, of_each, held.free_first)
    caps = of_drafter(of_each, drafter)
    survival, passes = shaped.survival_of(drafter), None
    gains = view.weights[:, None] * survival
    kept = np.arange(estimates.max_draft_tokens) < caps[:, None]
    kept &= (
        np.arange(estimates.max_draft_tokens) < settled.plan.lengths.max() if is_uniform else gains > held.least_gain
    )
    if depth:
        of_tokens = shaped.passes_of(drafter)
        kept &= of_tokens <= depth
        passes = (of_tokens * kept).max(axis=1, initial=0)
        depth = max(passes.tolist(), default=0)
    plan = _predict(view, estimates, settled, kept.sum(axis=1), depth, float((gains * kept).sum()))
    plan = plan if shaped.depths is None else with_fields(plan, passes=passes)
    changed = {"plan": plan, "drafter": drafter, "survival": survival, "caps": caps, "is_found": not depth}
    return with_fields(settled, **changed, invested_seconds=0.0)


def _caps(view: BatchView, estimates: Estimates, used: set[int]) -> np.ndarray:
    """Return the longest draft of each drafter in each row: int [D, R]. used: see _Held."""
    caps = np.minimum(view.draft_lengths, np.minimum(view.max_draft_tokens, estimates.max_draft_tokens))
    for number in estimates.models:
        caps[number] *= view.drafters[number].lag <= ordinary_lag(estimates) if number in used else 0
    return caps


def _drafter(view: BatchView, estimates: Estimates, caps: np.ndarray, free_first: bool) -> np.ndarray:
    """Return the drafter of each row: int [R], of largest yield. free_first: of those that found a draft, if any
    did."""
    if len(caps) < 2:
        return np.full(caps.shape[1], len(caps) - 1)
    yields = (estimates.survival * (np.arange(estimates.max_draft_tokens) < caps[:, :, None])).sum(axis=2)
    return model_free_first(view, estimates, yields) if free_first and estimates.models else yields.argmax(axis=0)


def _predict(
    view: BatchView, estimates: Estimates, settled: Choice, lengths: np.ndarray, depth: int, gained: float
) -> LengthPlan:
    """Return the plan of these lengths, with its predicted results. gained: the sum of the gains of their tokens."""
    base, value_of_time = sum(view.weights.tolist()), settled.prices.time if view.prefill_tokens else None
    off_seconds = estimates.latency.off_seconds(view) + estimates.latency.host_seconds
    seconds = off_seconds + settled.token_seconds * sum(lengths.tolist())
    seconds += float(settled.draft_seconds[:, depth].sum()) if depth else 0.0
    emitted = base + gained
    best, off = objective(emitted, seconds, value_of_time), objective(base, off_seconds, value_of_time)
    gain = relative_gain(best, off, base, value_of_time)
    return LengthPlan(lengths, depth, emitted / seconds, seconds, base / off_seconds, off_seconds, gain)
