"""Which lengths, from which drafter, are best for a step: the planner put to the question a step really asks.

Two costs of a step are not the price of its drafts alone:

* prefill in a mixed prefill-decode batch: it has to be done whatever is drafted. Time in such a step is valued at what
  it is worth in a step without prefill (see planner, value_of_time), and there the requests that are prefilled now or
  wait for it will decode as well: time is worth what that projected batch makes of it, if that is more.
* draft prefill: an investment, of which a step is charged a part (see draft_prefill).
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from smartspec.control.goodput.draft_prefill import begun, without_late_starters
from smartspec.control.goodput.hysteresis import Hysteresis
from smartspec.control.goodput.prefill_price import PrefillPrice
from smartspec.control.goodput.settings import DraftPrefillSettings, GoodputSettings
from smartspec.control.goodput.uniform import plan_uniform
from smartspec.control.planner.lengths import LengthPlan, plan_lengths
from smartspec.control.policy import Estimates, Latency, drafter_yields, length_caps, model_free_first, nobody, plan_by
from smartspec.control.records import BatchView, Plan


@dataclass(frozen=True)
class Choice:
    """The planner's answer and the drafter that each row may use: int [R], -1 for none.

    draft_seconds: float [D, K + 1], what 0..K passes of each drafter are charged. target_seconds: float [N + 1], of the
    target pass with 0..N draft tokens, N as many as any plan may have. value_of_time: tokens per second that the step's
    time is worth, its shadow price (see planner). off_value_of_time: tokens per second of the decoding requests in
    non-speculative steps of their own. survival: float [R, K], of each row's drafter. fairness: of the mean that was
    maximised. width: of the drafts, see records.Plan.
    """

    plan: LengthPlan
    drafter: np.ndarray
    draft_seconds: np.ndarray
    target_seconds: np.ndarray
    value_of_time: float
    off_value_of_time: float
    survival: np.ndarray
    fairness: float
    width: int = 1

    @property
    def draft_plan(self) -> Plan:
        return replace(plan_by(self.drafter, self.plan.lengths), depths=self.plan.passes, width=self.width)


@dataclass(frozen=True)
class Settled:
    """What a plan of goodput was decided by. is_planned: whether the best choice was followed, and no guard or
    exploration. weights: float [R], what one more token of each row is worth beside the choice, where drafts are cut by
    confidence; None elsewhere. saved_seconds: what the drafts are expected to save."""

    best: Choice
    latency: Latency
    is_planned: bool
    weights: np.ndarray | None = None
    saved_seconds: float = 0.0


def best_choice(
    view: BatchView,
    estimates: Estimates,
    settings: GoodputSettings,
    *,
    uniform: tuple[tuple[int, ...], Hysteresis] | None = None,
    fairness: float | None = None,
    remaining_tokens: float = np.inf,
    prefill_price: PrefillPrice | None = None,
    prices: tuple[float, float] | None = None,
) -> Choice:
    """The best plan over all drafters. uniform: lengths of which one holds for all, and what changing it costs.
    fairness: see goodput.Goodput. remaining_tokens: that each
    request is expected to make yet. prefill_price: what was learned of mixed steps, if anything. prices: value_of_time
    and off_value_of_time of a choice for the same mixed step, to be kept for another; None to find them."""
    models = [number for number in estimates.models if view.drafters[number].lengths.any()]
    if fairness is None:
        fairness = settings.fairness if models else 0.0
    planner = partial(plan_uniform, *uniform) if uniform else partial(_best_lengths, fairness=fairness)
    widths = (1,) if uniform or not models else settings.widths
    best_assignment = partial(_best_assignment, planner, models, widths, settings.draft_prefill, remaining_tokens)
    if not (view.prefill_tokens and view.num_rows and settings.prices_mixed_steps):
        best, drafter, draft_seconds, target_seconds, shaped = best_assignment(view, estimates, None)
        prices = best.goodput, best.off_goodput
    else:
        if prices is None:
            alone = best_assignment(_without_prefill(view), estimates, None)[0]
            usual = max(alone.goodput, _off_goodput_of_projected_batch(view, estimates, settings.projected_batch))
            value = usual if prefill_price is None else prefill_price.value_of_time(usual, view, estimates)
            prices = value, alone.off_goodput
        best, drafter, draft_seconds, target_seconds, shaped = best_assignment(view, estimates, prices[0])
    plan = without_late_starters(best, drafter, view, estimates, settings.draft_prefill.ordinary_lag)
    survival = shaped.survival_of(drafter)
    return Choice(plan, drafter, draft_seconds, target_seconds, *prices, survival, fairness, shaped.width)


def _best_assignment(
    plan,
    models: list[int],
    widths: tuple[int, ...],
    settings: DraftPrefillSettings,
    remaining_tokens: float,
    view: BatchView,
    estimates: Estimates,
    value_of_time: float | None,
) -> tuple[LengthPlan, np.ndarray, np.ndarray, np.ndarray, Estimates]:
    """The best plan of those for each width and assignment of drafters, that assignment, what its draft passes and
    targets cost, and the estimates for drafts so wide."""
    num_considered = min(view.num_rows * estimates.max_draft_tokens, view.draft_token_budget)
    target_seconds = estimates.latency.target_seconds(view, np.arange(num_considered + 1))
    options = []
    for shaped in {id(each): each for each in map(estimates.of_width, widths)}.values():
        best = partial(_best_of_shape, plan, view, shaped, target_seconds, value_of_time)
        for assignment in _assignments(view, shaped, models):
            drafter, seconds = begun(
                view, *assignment, shaped, settings, remaining_tokens, target_seconds, value_of_time, best
            )
            options.append((best(drafter, seconds), drafter, seconds, target_seconds, shaped))
    return max(options, key=lambda option: option[0].gain)


def _best_of_shape(
    plan,
    view: BatchView,
    estimates: Estimates,
    target_seconds: np.ndarray,
    value_of_time: float | None,
    drafter: np.ndarray,
    draft_seconds: np.ndarray,
) -> LengthPlan:
    return plan(view, drafter, estimates, draft_seconds.sum(axis=0), target_seconds, value_of_time)


def _without_prefill(view: BatchView) -> BatchView:
    return replace(view, num_prefills=0, prefill_tokens=0, prefill_context_tokens=0, prefill_attended_tokens=0.0)


def _off_goodput_of_projected_batch(view: BatchView, estimates: Estimates, largest: float) -> float:
    """Weighted tokens per second of the projected batch without drafts: all that are prefilled decode too, and those
    that wait, up to so many times the requests under way (the head of a longer queue has left before its end is
    prefilled)."""
    under_way = view.num_rows + view.num_prefills
    num_rows = min(under_way + view.num_waiting, int(largest * under_way))
    context = (view.total_context_tokens + view.prefill_context_tokens) // (view.num_rows + view.num_prefills)
    projected = BatchView(
        request_ids=np.arange(num_rows),
        context_tokens=np.full(num_rows, context),
        max_draft_tokens=np.zeros(num_rows, dtype=np.int64),
    )
    seconds = float(estimates.latency.target_seconds(projected, np.zeros(1))[0]) + estimates.latency.host_seconds
    return num_rows * float(view.weights.mean()) / seconds


def _assignments(view: BatchView, estimates: Estimates, models: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Which drafter each row might have, int [R], beside which it has without those whose KV must be prefilled first.
    models: those of the drafters that can draft now.

    Model-free drafters first, as they are free, or whoever yields most: with each draft model alone, and with all.
    """
    num_drafters = len(estimates.drafters)
    if num_drafters < 2 or not models:
        only = model_free_first(view, estimates)
        return [(only, nobody(view.num_rows) if models else only)]
    yields = drafter_yields(view, estimates)
    is_free = np.array([not drafter.has_passes for drafter in estimates.drafters])
    of_free = np.where(is_free[:, None] & (view.draft_lengths > 0), yields, -1.0)
    without = np.where(of_free.max(axis=0) < 0, -1, of_free.argmax(axis=0))
    found = {}
    for group in [[model] for model in models] + [models] * (len(models) != 1):
        may_draft = is_free.copy()
        may_draft[group] = True
        some = np.where(may_draft[:, None], yields, -1.0)
        for drafter in (model_free_first(view, estimates, some), some.argmax(axis=0)):
            found[drafter.tobytes()] = drafter
    return [(drafter, without) for drafter in found.values()]


def _best_lengths(
    view: BatchView,
    drafter: np.ndarray,
    estimates: Estimates,
    draft_seconds: np.ndarray,
    target_seconds: np.ndarray,
    value_of_time: float | None,
    fairness: float,
) -> LengthPlan:
    """The planner's answer when each row's drafter is given. Passes of several drafters add up to the same depth."""
    return plan_lengths(
        estimates.survival_of(drafter),
        length_caps(view, drafter, estimates.max_draft_tokens),
        view.weights,
        estimates.has_passes(drafter),
        draft_seconds,
        target_seconds,
        estimates.latency.host_seconds,
        value_of_time,
        fairness,
        passes=None if estimates.depths is None else estimates.passes_of(drafter),
    )
