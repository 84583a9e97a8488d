"""The worth of the time of a step, and the lengths and drafters that are best at that price.

The price of time is the goodput of the best plan for the decoding requests of a step on their own: the tokens that one
more second makes. Two costs of a step are not caused by its drafts alone:

* Prefill in a mixed prefill-decode batch. It has to be done whatever is drafted. Time in such a step has the price that
  it has for the same requests without prefill (see planner, value_of_time), because a token made now need not be made
  there. The requests that are prefilled now or wait for it will decode there, too. They make a projected batch. If its
  goodput is more, that is the price. In a closed loop of long prompts time is worth less (see prefill_price).
* Draft prefill. It is an investment, of which a step is charged a part (see draft_prefill).
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from smartspec.control.goodput.draft_prefill import begin_draft_prefill, drop_late_starters, invested_seconds
from smartspec.control.goodput.prefill_price import PrefillPrice
from smartspec.control.goodput.settings import GoodputSettings
from smartspec.control.planner.lengths import LengthPlan, StepTimes, plan_lengths
from smartspec.control.policy import Estimates, drafter_yields, length_caps, model_free_first, no_drafter
from smartspec.control.records import BatchView, Plan


@dataclass(frozen=True)
class Prices:
    """Prices of a step's time, in (weighted) tokens per second."""

    time: float  # the shadow price (see planner)
    off: float  # the goodput of the decoding requests in non-speculative steps of their own


@dataclass(frozen=True)
class Choice:
    """The best lengths, the drafters, and the times they were chosen by."""

    plan: LengthPlan
    drafter: np.ndarray  # int [R], the drafter that each row may use, -1 for none
    caps: np.ndarray  # int [R], the longest draft of each row
    draft_seconds: np.ndarray  # float [D, K + 1], charged for 0..K passes of each drafter
    token_seconds: float  # that a draft token adds to the target's pass, near the plan
    pass_seconds: np.ndarray  # float [D, K], of a pass of each drafter at each depth, whichever rows take part
    row_seconds: float  # that each row adds to such a pass at most
    prices: Prices
    survival: np.ndarray  # float [R, K], of each row's drafter
    width: int = 1  # of the drafts, see records.Plan
    is_found: bool = False  # all drafts exist before the plan
    invested_seconds: float = 0.0  # of draft prefill that begins with the plan

    @property
    def draft_plan(self) -> Plan:
        """The plan as hosts get it."""
        plan = self.plan
        drafter = np.where(plan.lengths > 0, self.drafter, -1)
        return Plan(plan.lengths, drafter, depths=plan.passes, width=self.width, is_whole=self.is_found)


def best_choice(
    view: BatchView,
    estimates: Estimates,
    settings: GoodputSettings,
    *,
    plan_uniform=None,
    remaining_tokens: float = np.inf,
    prefill_price: PrefillPrice | None = None,
    prices: Prices | None = None,
) -> Choice:
    """Return the best plan over all drafters and widths.

    plan_uniform: plans one length for all rows, see uniform. remaining_tokens: that each request is still expected to
    make. prefill_price: learned from mixed steps. prices: of an earlier choice for the same mixed step; None to compute
    them."""
    models = [number for number in estimates.models if view.drafters[number].lengths.any()]
    value_of_time = None
    options = {"plan_uniform": plan_uniform, "remaining_tokens": remaining_tokens}
    if view.prefill_tokens and plan_uniform and any(drafter.kept_passes for drafter in estimates.drafters):
        return _without_prefill(view, estimates, settings, options, prices=prices)
    if view.prefill_tokens and view.num_rows and settings.prices_mixed_steps:
        prices = prices or _prices_of_mixed(view, estimates, settings, options, prefill_price)
        value_of_time = prices.time
    num_considered = min(view.num_rows * estimates.max_draft_tokens, view.draft_token_budget)
    target_seconds = estimates.latency.target_seconds(view, np.arange(num_considered + 1))
    widths = (1,) if plan_uniform or not models else settings.widths
    found = []
    for shaped in {id(each): each for each in map(estimates.of_width, widths)}.values():
        plan = partial(plan_uniform or _best_lengths, view, shaped, target_seconds, value_of_time)
        for drafter, other in _assignments(view, shaped, models):
            drafter, draft_seconds = begin_draft_prefill(
                view, drafter, other, shaped, settings.draft_prefill, remaining_tokens, value_of_time, plan
            )
            found.append((plan(drafter, draft_seconds), drafter, draft_seconds, shaped))
    best, drafter, draft_seconds, shaped = max(found, key=lambda option: option[0].gain)
    if value_of_time is None or prices is None:
        prices = Prices(best.goodput, best.off_goodput)
    pass_seconds, row_seconds = _pass_seconds(view, estimates, drafter, draft_seconds)
    best = drop_late_starters(best, drafter, view, estimates)
    return Choice(
        plan=best,
        drafter=drafter,
        caps=length_caps(view, drafter, estimates.max_draft_tokens),
        draft_seconds=draft_seconds,
        token_seconds=_token_seconds(target_seconds, best.num_draft_tokens),
        pass_seconds=pass_seconds,
        row_seconds=row_seconds,
        prices=prices,
        survival=shaped.survival_of(drafter),
        width=shaped.width,
        is_found=not models,
        invested_seconds=invested_seconds(best, drafter, view, estimates),
    )


def _token_seconds(target_seconds: np.ndarray, num_tokens: int) -> float:
    """Return the seconds that one more token adds to a pass. Times of passes have steps, so it is the mean over passes
    of half to twice so many draft tokens."""
    end = len(target_seconds) - 1
    first, last = num_tokens // 2, min(2 * num_tokens + 1, end)
    return float(target_seconds[last] - target_seconds[first]) / (last - first) if last > first else 0.0


def _pass_seconds(
    view: BatchView, estimates: Estimates, drafter: np.ndarray, draft_seconds: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return pass_seconds and row_seconds of a Choice. drafter: int [R], of each row."""
    of_all, most_per_row = np.diff(draft_seconds, axis=1), 0.0
    for number in estimates.models:
        rows = drafter == number
        if (num_rows := int(rows.sum())) < 2:
            continue
        first = no_drafter(view.num_rows)
        first[np.where(rows, view.max_draft_tokens, -1).argmax()] = number
        of_one = float(estimates.latency.draft_seconds(view.with_lags_up_to(0), first, 1)[number, 1])
        per_row = max(float(of_all[number, 1:].max(initial=0.0)) - of_one, 0.0) / (num_rows - 1)
        of_all[number] = np.maximum(of_all[number] - num_rows * per_row, 0.0)
        most_per_row = max(most_per_row, per_row)
    return of_all, most_per_row


def _prices_of_mixed(
    view: BatchView, estimates: Estimates, settings: GoodputSettings, options: dict, prefill_price: PrefillPrice | None
) -> Prices:
    """Return the prices of a step with prefill: those of its decoding requests alone, or of the projected batch, if
    that is more."""
    alone = _without_prefill(view, estimates, settings, options).prices
    usual = max(alone.time, _off_goodput_of_projected_batch(view, estimates, settings.projected_batch))
    return Prices(prefill_price.value_of_time(usual, view, estimates) if prefill_price else usual, alone.off)


def _without_prefill(view: BatchView, estimates: Estimates, settings: GoodputSettings, options: dict, **more) -> Choice:
    """Return the best plan of the same requests in a step of their own."""
    return best_choice(view.without_prefill(), estimates, settings, **options, **more)


def _off_goodput_of_projected_batch(view: BatchView, estimates: Estimates, largest: float) -> float:
    """Return the weighted tokens per second of the projected batch without drafts.

    In it the requests in prefill decode too, and so do waiting ones, up to largest times the requests under way. Of a
    longer queue, the first requests have left before the last are prefilled."""
    under_way = view.num_rows + view.num_prefills
    num_rows = min(under_way + view.num_waiting, int(largest * under_way))
    context = (view.total_context_tokens + view.prefill_context_tokens) // under_way
    projected = BatchView(
        request_ids=np.arange(num_rows),
        context_tokens=np.full(num_rows, context),
        max_draft_tokens=np.zeros(num_rows, dtype=np.int64),
    )
    seconds = estimates.latency.off_seconds(projected) + estimates.latency.host_seconds
    return num_rows * float(view.weights.mean()) / seconds


def _assignments(view: BatchView, estimates: Estimates, models: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return candidate drafters of each row, int [R], each with their replacements where the KV would have to be
    prefilled first, int [R]. models: the drafters with passes that can draft now.

    A row gets a model-free drafter first, because it is free, or the drafter of largest yield. Both are tried with each
    draft model alone, and with all of them.
    """
    num_drafters = len(estimates.drafters)
    if num_drafters < 2 or not models:
        only = model_free_first(view, estimates)
        return [(only, no_drafter(view.num_rows) if models else only)]
    yields = drafter_yields(view, estimates)
    is_free = np.array([not drafter.has_passes for drafter in estimates.drafters])
    of_free = np.where(is_free[:, None] & (view.draft_lengths > 0), yields, -1.0)
    without = np.where(of_free.max(axis=0) < 0, -1, of_free.argmax(axis=0))
    found = {}
    for group in [[model] for model in models] + [models] * (len(models) != 1):
        can_draft = is_free.copy()
        can_draft[group] = True
        some = np.where(can_draft[:, None], yields, -1.0)
        for drafter in (model_free_first(view, estimates, some), some.argmax(axis=0)):
            found[drafter.tobytes()] = drafter
    return [(drafter, without) for drafter in found.values()]


def _best_lengths(
    view: BatchView,
    estimates: Estimates,
    target_seconds: np.ndarray,
    value_of_time: float | None,
    drafter: np.ndarray,
    draft_seconds: np.ndarray,
) -> LengthPlan:
    """Return the best lengths when each row's drafter is given. Seconds of several drafters are added, all to the same
    depth."""
    return plan_lengths(
        estimates.survival_of(drafter),
        length_caps(view, drafter, estimates.max_draft_tokens),
        view.weights,
        estimates.has_passes(drafter),
        StepTimes(draft_seconds.sum(axis=0), target_seconds, estimates.latency.host_seconds),
        value_of_time,
        passes=None if estimates.depths is None else estimates.passes_of(drafter),
    )
