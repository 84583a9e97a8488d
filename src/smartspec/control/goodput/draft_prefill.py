"""Draft prefill: tokens that a draft model's KV lacks are fed once, and serve all later drafts of the request.

It is an investment. In each step that the request still lives, its drafts bring a gain beyond their own price (of draft
passes and of verification). The sum of these gains must exceed the cost of its draft prefill; otherwise the row gets no
drafts of that drafter. A step is charged its share of the draft prefill that begins in it.

A step prefills drafters for no longer than a non-speculative step takes; one request may always begin. Requests with
the least lag begin, the others wait.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from smartspec.control.goodput.settings import DraftPrefillSettings
from smartspec.control.planner.lengths import LengthPlan
from smartspec.control.policy import Estimates, expected_accepted
from smartspec.control.records import BatchView, Outcome, of_drafter


class Lifetime:
    """The number of tokens that a request still generates.

    All requests have one hazard rate: ended requests over generated tokens, both fading. Requests that still run count
    with the tokens they have made so far. So the short ones, which end first, do not bias it."""

    def __init__(self, settings: DraftPrefillSettings):
        self._fade = 1.0 - 1.0 / settings.memory
        self._ended = settings.prior_requests
        self._made = settings.prior_requests * settings.prior_tokens
        self._request_ids = np.zeros(0, dtype=np.int64)  # of the last step

    @property
    def remaining_tokens(self) -> float:
        """The tokens that a request is still expected to make, however many it has made."""
        return self._made / self._ended

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished step."""
        self._request_ids = outcome.view.request_ids
        self._made += outcome.view.num_rows + sum(outcome.accepted.tolist())

    def request_ended(self, request_id: int) -> None:
        """Learn that a request has ended; nothing is learned from one that was not decoding."""
        if (self._request_ids == request_id).any():
            self._made *= self._fade
            self._ended = self._ended * self._fade + 1.0


def ordinary_lag(estimates: Estimates) -> int:
    """Return the most tokens that draft KV lacks of a row that drafts in every step: those of the last step, where all
    that it drafted was accepted (heads, paths of trees). They are no investment."""
    return estimates.max_draft_tokens + 1


def begin_draft_prefill(
    view: BatchView,
    drafter: np.ndarray,
    without: np.ndarray,
    estimates: Estimates,
    settings: DraftPrefillSettings,
    remaining_tokens: float,
    value_of_time: float | None,
    plan: Callable[[np.ndarray, np.ndarray], LengthPlan],
) -> tuple[np.ndarray, np.ndarray]:
    """Decide which rows begin a draft prefill. Return the drafter of each row, int [R], and the time of 0..K passes of
    each drafter, float [D, K + 1], with the share of draft prefill that this step is charged.

    A row keeps its drafter where that one's KV is up to date, or where drafts are worth their draft prefill. Otherwise
    it gets that of without.

    drafter, without: int [R]. remaining_tokens: that each request is still expected to make. value_of_time: see
    planner. plan: a function of the drafter of each row and the times of draft passes that returns the best lengths.
    """
    latency, max_draft_tokens = estimates.latency, estimates.max_draft_tokens
    if not estimates.has_passes(drafter).any():
        return drafter, np.zeros((len(estimates.drafters), max_draft_tokens + 1))
    # The lag is 0 for rows without a drafter, and for model-free drafters.
    lag = np.where(drafter >= 0, of_drafter(view.draft_lags, drafter), 0)
    is_late = lag > ordinary_lag(estimates)
    if not settings.is_priced or not is_late.any():
        return drafter, latency.draft_seconds(view, drafter, max_draft_tokens, estimates.width)
    up_to_date = view.with_lags_up_to(ordinary_lag(estimates))
    seconds = latency.draft_seconds(up_to_date, drafter, max_draft_tokens, estimates.width)
    best = plan(drafter, seconds)
    accepted = expected_accepted(estimates.survival_of(drafter), best.lengths)
    steps = np.minimum(remaining_tokens / (1.0 + accepted), settings.max_steps)
    invested = _investment(drafter, lag, latency.draft_seconds(view, drafter, 1)[:, 1] - seconds[:, 1])
    price = best.goodput if value_of_time is None else value_of_time
    spent = best.lengths * (best.seconds - best.off_seconds) / max(best.num_draft_tokens, 1)
    gains = view.weights * accepted - price * spent
    worth_it = gains * steps * _worth_of_an_end(view) >= price * invested
    begins = worth_it | ~is_late
    seconds = latency.draft_seconds(up_to_date, np.where(begins, drafter, without), max_draft_tokens, estimates.width)
    for number in estimates.models:
        charged = begins & is_late & (drafter == number)
        seconds[number, 1:] += (invested / np.maximum(steps, 1.0))[charged].sum()
    return np.where(begins, drafter, without), seconds


def invested_seconds(plan: LengthPlan, drafter: np.ndarray, view: BatchView, estimates: Estimates) -> float:
    """Return the seconds of the draft prefill that begins with this plan, besides those of its drafts."""
    lag = np.where(estimates.has_passes(drafter) & (plan.lengths > 0), of_drafter(view.draft_lags, drafter), 0)
    if lag.max(initial=0) <= ordinary_lag(estimates):
        return 0.0
    begins = np.where(lag > ordinary_lag(estimates), drafter, -1)
    up_to_date = view.with_lags_up_to(ordinary_lag(estimates))
    late, usual = (estimates.latency.draft_seconds(each, begins, 1)[:, 1].sum() for each in (view, up_to_date))
    return float(late - usual)


def drop_late_starters(plan: LengthPlan, drafter: np.ndarray, view: BatchView, estimates: Estimates) -> LengthPlan:
    """Return the plan without drafts for rows that would make this step prefill drafters for longer than a
    non-speculative step takes. At least one row begins."""
    starters = estimates.has_passes(drafter) & (plan.lengths > 0)
    if view.draft_lags.max(initial=0) <= ordinary_lag(estimates) or not starters.any():
        return plan
    seconds = float(estimates.latency.draft_seconds(view, np.where(starters, drafter, -1), 1)[:, -1].sum())
    if seconds <= plan.off_seconds:
        return plan
    lag = of_drafter(view.draft_lags, drafter)
    rows = np.flatnonzero(starters)
    rows = rows[np.argsort(lag[rows], kind="stable")]
    fed_tokens = np.cumsum(lag[rows] + 1)
    fits = fed_tokens <= fed_tokens[-1] * plan.off_seconds / seconds
    first_late = int((lag[rows] > ordinary_lag(estimates)).argmax())
    fits[: first_late + 1] = True  # otherwise a long request could never begin
    lengths = plan.lengths.copy()
    lengths[rows[~fits]] = 0
    return replace(plan, lengths=lengths)


def _investment(drafter: np.ndarray, lag: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return each row's part of the seconds of the draft prefill of each drafter (float [D]): float [R]."""
    invested = np.zeros(len(lag))
    for number, seconds_of_one in enumerate(seconds.tolist()):
        lag_of_one = np.where(drafter == number, lag, 0)
        invested += seconds_of_one * lag_of_one / max(lag_of_one.sum(), 1)
    return invested


def _worth_of_an_end(view: BatchView) -> np.ndarray:
    """Return the worth of an earlier end of each request, relative to the others: float [R].

    Half of it is the request's own gain. Half is the gain of the others: its context is no longer read in every step,
    and its memory is free."""
    total = max(view.total_context_tokens, 1)
    return (1.0 + view.num_rows * view.context_tokens / total) / 2.0
