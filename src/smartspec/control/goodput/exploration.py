"""Exploration: steps that are not expected to be the best, but from which the controller learns. The budget pays them.

Two things can only be learned by a trial. One is the cost of a non-speculative step while every step speculates. The
other is the worth of tokens that no draft reaches now: the second token where all drafts have one, or any token of a
draft model that is off. Drafts that are too short hide it. Their next token is not tested, larger passes are not timed,
and a wrong estimate is never corrected.

One rule serves both. After a number of steps at a batch size, one of the two is tried if the budget can pay its
expected loss. The number doubles every time, so that little is spent on what is known. Where the alternatives are
close, a trial is cheap and a mistake is likely, so trials are frequent. Where one is far better, they are rare.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from smartspec.control.goodput.budget import Budget, size_of
from smartspec.control.goodput.prices import Choice
from smartspec.control.goodput.settings import BudgetSettings
from smartspec.control.goodput.uniform import LengthTimes
from smartspec.control.policy import Estimates, expected_accepted, no_drafts, plan_by
from smartspec.control.records import BatchView, Plan, of_drafter

PLAIN_EVERY = 4  # of four explorations one is a non-speculative step: its result holds for longer
NON_SPECULATIVE = "non-speculative step, to know what one costs"
OTHER = "another length for all, to know what it takes and brings"
LONGER = "longer drafts, to know what they are worth"


@dataclass
class _Size:
    """The explorations at one batch size."""

    spacing: int  # steps between two explorations
    num_steps: int = 0  # since the last exploration
    num_explored: int = 0


class Exploration:
    """Decides when to explore, and how.

    times: of the lengths, where all rows share one; then either all rows explore or none. None where each row has its
    own length."""

    def __init__(self, settings: BudgetSettings, budget: Budget, times: LengthTimes | None = None):
        self._settings, self._budget, self._times = settings, budget, times
        self._sizes: dict[int, _Size] = defaultdict(lambda: _Size(settings.first_spacing))

    def step(self, num_rows: int) -> None:
        """Count a step of so many decoding requests."""
        self._sizes[size_of(num_rows)].num_steps += 1

    def plan(
        self,
        view: BatchView,
        estimates: Estimates,
        best: Choice,
        planned: Plan,
        choose: Callable[[Estimates], Choice],
    ) -> Plan | None:
        """Return the exploratory plan of this step, with its reason; None if none is due, useful or within the budget.

        best: the step's choice. planned: its plan. choose: returns the choice by other estimates.
        """
        if self._times is not None and self._settings.share:
            # Larger drafts may be believed to cost little because no step was so large yet.
            unknown = self._times.try_unknown(view.num_rows + view.num_prefills, int(planned.lengths.max(initial=0)))
            if unknown is not None:
                return _plan_of_length(best, unknown)
        size = self._sizes[size_of(view.num_rows)]
        if size.num_steps < size.spacing or not self._settings.share:
            return None
        size.num_steps -= self._settings.first_spacing // 2  # if nothing is explored now: soon again
        # A mixed step does not show the cost of a non-speculative one, and some servers have no others.
        can_be_plain = planned.lengths.any() and not view.prefill_tokens
        is_plain = can_be_plain and size.num_explored % PLAIN_EVERY == 0
        if self._times is not None:
            options = self._other_lengths(self._times, view, best, planned)
        elif is_plain:
            options = [replace(no_drafts(view.num_rows), reason=NON_SPECULATIVE)]
        else:
            options = self._longer_drafts(view, estimates, planned, choose)
        chosen = next((plan for plan in options if self._budget.pay(_loss(view, estimates, best, planned, plan))), None)
        if chosen is not None:
            size.num_steps, size.num_explored = 0, size.num_explored + 1
            size.spacing = min(2 * size.spacing, self._settings.longest_spacing)
        return chosen

    def _other_lengths(self, times: LengthTimes, view: BatchView, best: Choice, planned: Plan) -> list[Plan]:
        """Return plans of the other lengths that all drafts may share, the one that was used longest ago first."""
        others = times.others(view.num_rows + view.num_prefills, int(planned.lengths.max(initial=0)))
        return [_plan_of_length(best, each) for each in others if each * view.num_rows <= view.draft_token_budget]

    def _longer_drafts(self, view, estimates, planned, choose) -> list[Plan]:
        """Return plans of drafts that would be worth their price at good acceptance. Where no row drafts now, plans for
        fewer rows follow."""
        good = self._settings.good_acceptance ** np.arange(1, estimates.max_draft_tokens + 1)
        longer = choose(estimates.with_survival(np.maximum(estimates.survival, good))).draft_plan
        if longer.lengths.sum() <= planned.lengths.sum():
            return []
        num_rows = (view.num_rows,) if planned.lengths.any() else (view.num_rows, 8, 2, 1)
        return [replace(_keep_least_lag(view, longer, num), reason=LONGER) for num in num_rows]


def _plan_of_length(best: Choice, length: int) -> Plan:
    return replace(plan_by(best.drafter, np.minimum(best.caps, length)), reason=OTHER)


def _loss(view: BatchView, estimates: Estimates, best: Choice, planned: Plan, other: Plan) -> float:
    """Return the seconds of step time that the other plan is expected to lose against the planned one, at the step's
    shadow price of time."""
    values = []
    for plan in (planned, other):
        survival = estimates.of_width(plan.width).survival_of(plan.drafter)
        emitted = float(view.weights @ expected_accepted(survival, plan.lengths))
        depth = int(plan.passes[estimates.has_passes(plan.drafter)].max(initial=0))
        seconds = float(estimates.latency.draft_seconds(view, plan.drafter, depth, plan.width)[:, -1].sum())
        seconds += float(estimates.latency.target_seconds(view, plan.lengths.sum(keepdims=True))[0])
        values.append(emitted / best.prices.time - seconds)
    return values[0] - values[1]


def _keep_least_lag(view: BatchView, plan: Plan, num_rows: int) -> Plan:
    """Return the plan for at most that many of its rows: those whose draft KV lags least."""
    lag = np.where(plan.lengths > 0, of_drafter(view.draft_lags, plan.drafter), np.iinfo(np.int64).max)
    lengths = plan.lengths.copy()
    lengths[lag.argsort(kind="stable")[num_rows:]] = 0
    return replace(plan_by(plan.drafter, lengths), depths=plan.depths, width=plan.width)
