"""Which lengths, from which drafter, are best for a step: the planner put to the question a step really asks.

Two costs of a step are not the price of its drafts alone:

* prefill: it has to be done whatever is drafted. Time in such a step is valued at what it is worth in a step without
  prefill (see planner, value_of_time), and there those who are prefilled now or wait for it will decode as well: time
  is worth what the larger batch makes of it, if that is more. Where all is prefill's or many wait, see prefill_price.
* catching up of the draft model: an investment, of which a step is charged a part (see catch_up).
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from smartspec.control.goodput.catch_up import begun, without_late_starters
from smartspec.control.goodput.prefill_price import PrefillPrice
from smartspec.control.goodput.uniform import plan_uniform
from smartspec.control.planner.lengths import LengthPlan, plan_lengths
from smartspec.control.policy import Estimates, expected_accepted, length_caps
from smartspec.control.records import BatchView, DraftPlan, Offers


@dataclass(frozen=True)
class Choice:
    """The planner's answer and the source of each row's draft (bool [R], True: the draft model).

    draft_seconds: float [K + 1], what 0..K draft passes are charged. target_seconds: float [N + 1], of the target pass
    with 0..N draft tokens, N as many as any plan may have. value_of_time: tokens per second that the step's time is
    worth. plain_value_of_time: tokens per second of the decoding requests in steps of their own without drafts.
    """

    plan: LengthPlan
    use_model: np.ndarray
    draft_seconds: np.ndarray
    target_seconds: np.ndarray
    value_of_time: float
    plain_value_of_time: float

    @property
    def draft_plan(self) -> DraftPlan:
        return DraftPlan(lengths=self.plan.lengths, use_model=self.use_model & (self.plan.lengths > 0))


def best_choice(
    view: BatchView,
    estimates: Estimates,
    uniform_lengths: tuple[int, ...] | None = None,
    fairness: float = 0.0,
    remaining_tokens: np.ndarray | None = None,
    prefill_price: PrefillPrice | None = None,
    prices: tuple[float, float] | None = None,
) -> Choice:
    """The best plan over all sources. uniform_lengths, fairness: see goodput.Goodput. remaining_tokens: float [R], what
    each request is expected to make yet; None: many. prefill_price: what was learned of steps with prefill, if
    anything. prices: value_of_time and plain_value_of_time of a choice for the same step with prefill, to be kept for
    another; None to find them."""
    plan = partial(plan_uniform, uniform_lengths) if uniform_lengths else partial(_best_lengths, fairness=fairness)
    best_source = partial(_best_source, plan, remaining_tokens)
    if not (view.prefill_tokens and view.num_rows):
        best, use_model, *seconds = best_source(view, estimates, None)
        prices = best.goodput, best.off_goodput
    else:
        if prices is None:
            alone = best_source(_without_prefill(view), estimates, None)[0]
            prices = _value_beside_prefill(view, estimates, alone.goodput, prefill_price), alone.off_goodput
        best, use_model, *seconds = best_source(view, estimates, prices[0])
    return Choice(without_late_starters(best, use_model, view, estimates), use_model, *seconds, *prices)


def _value_beside_prefill(
    view: BatchView, estimates: Estimates, goodput_alone: float, prefill_price: PrefillPrice | None
) -> float:
    """Tokens per second that the time of this step with prefill is worth. goodput_alone: of its rows without it."""
    num_waiting = view.num_waiting if prefill_price is None else prefill_price.num_joining(view)
    usual = max(goodput_alone, _plain_goodput_of_crowd(view, num_waiting, estimates))
    return usual if prefill_price is None else prefill_price.value_of_time(usual, view, estimates)


def _best_source(
    plan, remaining_tokens: np.ndarray | None, view: BatchView, estimates: Estimates, value_of_time: float | None
) -> tuple[LengthPlan, np.ndarray, np.ndarray, np.ndarray]:
    """The best plan of those for each choice of sources, that choice, and what its draft passes and targets cost."""
    num_considered = min(view.num_rows * estimates.max_draft_tokens, view.draft_token_budget)
    target_seconds = estimates.latency.target_seconds(view, np.arange(num_considered + 1))
    options = []
    for source in _source_choices(view, estimates):

        def best(use_model: np.ndarray, draft_seconds: np.ndarray) -> LengthPlan:
            return plan(view, use_model, estimates, draft_seconds, target_seconds, value_of_time)

        use_model, draft_seconds = begun(view, source, estimates, remaining_tokens, target_seconds, value_of_time, best)
        options.append((best(use_model, draft_seconds), use_model, draft_seconds, target_seconds))
    return max(options, key=lambda option: option[0].gain)


def _without_prefill(view: BatchView) -> BatchView:
    return replace(view, num_prefills=0, prefill_tokens=0, prefill_context_tokens=0, prefill_attended_tokens=0.0)


def _plain_goodput_of_crowd(view: BatchView, num_waiting: int, estimates: Estimates) -> float:
    """Weighted tokens per second without drafts once all that are prefilled and so many that wait decode too."""
    num_rows = view.num_rows + view.num_prefills + num_waiting
    context = (view.total_context_tokens + view.prefill_context_tokens) // (view.num_rows + view.num_prefills)
    nobody = np.zeros(num_rows, dtype=np.int64)
    crowd = BatchView(
        request_ids=np.arange(num_rows),
        context_tokens=np.full(num_rows, context),
        max_draft_tokens=nobody,
        unseen_tokens=nobody,
        offers=Offers(nobody, nobody),
    )
    seconds = float(estimates.latency.target_seconds(crowd, np.zeros(1))[0]) + estimates.latency.host_seconds
    return num_rows * float(view.weights.mean()) / seconds


def _source_choices(view: BatchView, estimates: Estimates) -> list[np.ndarray]:
    """Which rows would use the draft model: bool [R] each. Offers first, as they are free; or what yields more."""
    if estimates.survival_model is None:
        return [np.zeros(view.num_rows, dtype=bool)]
    offers_first = view.offers.lengths == 0
    if offers_first.all():
        return [offers_first]
    max_draft_tokens = estimates.max_draft_tokens
    of_model = expected_accepted(estimates.survival_model, length_caps(view, True, max_draft_tokens))
    of_offer = expected_accepted(estimates.survival_offer, length_caps(view, False, max_draft_tokens))
    by_yield = of_model > of_offer
    return [offers_first] if (offers_first == by_yield).all() else [offers_first, by_yield]


def _best_lengths(
    view: BatchView,
    use_model: np.ndarray,
    estimates: Estimates,
    draft_seconds: np.ndarray,
    target_seconds: np.ndarray,
    value_of_time: float | None,
    fairness: float,
) -> LengthPlan:
    """The planner's answer when each row's source is given."""
    return plan_lengths(
        estimates.survival(use_model),
        length_caps(view, use_model, estimates.max_draft_tokens),
        view.weights,
        use_model,
        draft_seconds,
        target_seconds,
        estimates.latency.host_seconds,
        value_of_time,
        fairness,
    )
