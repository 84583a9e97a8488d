"""Exploration: steps that are not believed to be best, for what they teach, within a budget of step time.

Two things can only be learned by doing them: what a non-speculative step costs while every step speculates, and what
tokens are worth that no draft reaches now (the second token of drafts that all have one; any token of a draft model
that is off). Drafts that are too short hide it: their next token is not tested, larger passes are not timed, and the
estimate that once spoke against them stays.

One rule for both: every so many steps at a batch size (doubling, so that little is spent on what is known), one of the
two, if the credit that grows by a share of all step time pays for what it is expected to lose. So it happens
often where the two are close (cheap, and where a mistake is likely) and rarely where one is far better.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from smartspec.control.goodput.choice import Choice
from smartspec.control.goodput.settings import ExplorationSettings
from smartspec.control.policy import Estimates, expected_accepted, no_drafts, plan_by
from smartspec.control.records import BatchView, Plan, of_drafter

NUM_SIZES = 12  # batch sizes are told apart by log2
PLAIN_EVERY = 4  # of four explorations one is a non-speculative step: what it tells holds for longer
NON_SPECULATIVE = "non-speculative step, to know what one costs"
LONGER = "longer drafts, to know what they are worth"


class Exploration:
    """Decides when to explore, and how. credit: seconds of step time that may be lost."""

    def __init__(self, settings: ExplorationSettings):
        self.credit = 0.0
        self._settings = settings
        self._steps_since = [0] * NUM_SIZES
        self._spacing = [settings.first_spacing] * NUM_SIZES
        self._num_explored = [0] * NUM_SIZES
        self._is_first = True

    def earn(self, num_rows: int, step_seconds: float) -> None:
        """A step is over. What may be saved up is the time of one step: exploring in bursts teaches little more; it is
        there at the start, where a first look is worth its price."""
        earned = step_seconds if self._is_first else self._settings.share * step_seconds
        self.credit = min(self.credit + earned, step_seconds)
        self._is_first = False
        self._steps_since[size_of(num_rows)] += 1

    def plan(
        self,
        view: BatchView,
        estimates: Estimates,
        best: Choice,
        planned: Plan,
        ask: Callable[[Estimates], Choice],
        *,
        all_alike: bool = False,
    ) -> Plan | None:
        """The exploratory plan of this step, with its reason; None where none is due, useful or affordable.

        best: the step's choice, planned: what it comes to (no drafts where they gain too little). ask: the same
        question, given other estimates. all_alike: all rows have to draft as long, so it is all or none.
        """
        size = size_of(view.num_rows)
        if not self._settings.share or self._steps_since[size] < self._spacing[size] or not view.num_rows:
            return None
        self._steps_since[size] -= self._settings.first_spacing // 2  # where nothing comes of it: soon again
        sizes = (view.num_rows,) if all_alike or planned.lengths.any() else (view.num_rows, 8, 2, 1)
        # A mixed step does not tell what a non-speculative one costs, and some servers have no others.
        may_be_plain = planned.lengths.any() and not view.prefill_tokens
        is_plain = may_be_plain and self._num_explored[size] % PLAIN_EVERY == 0
        found = self._explored(view, estimates, best, planned, ask, () if is_plain else sizes)
        if found is not None:
            self._steps_since[size] = 0
            self._spacing[size] = min(2 * self._spacing[size], self._settings.longest_spacing)
            self._num_explored[size] += 1
        return found

    def _explored(self, view, estimates, best, planned, ask, sizes) -> Plan | None:
        if not sizes:
            plain = no_drafts(view.num_rows)
            is_bought = self._buy(_loss(view, estimates, best, planned, plain))
            return replace(plain, reason=NON_SPECULATIVE) if is_bought else None
        for survival in self._hoped(view, estimates):
            longer = ask(replace(estimates, survival=survival)).draft_plan
            if longer.lengths.sum() <= planned.lengths.sum():
                continue
            for num_rows in sizes:
                some = _of_least_lag(view, longer, num_rows)
                if self._buy(_loss(view, estimates, best, planned, some)):
                    return replace(some, reason=LONGER)
            return None
        return None

    def _hoped(self, view: BatchView, estimates: Estimates) -> Iterator[np.ndarray]:
        """Survival if acceptance were better than it is believed to be, ever more so: float [D, R, K] each."""
        if estimates.acceptance is None:
            return
        for hope in self._settings.hopes:
            yield estimates.acceptance.survival_shifted(view, hope)
        positions = np.arange(1, estimates.max_draft_tokens + 1)
        yield np.maximum(estimates.survival, self._settings.good_acceptance**positions)

    def _buy(self, price_seconds: float) -> bool:
        if price_seconds > self.credit:
            return False
        self.credit -= max(price_seconds, 0.0)
        return True


def _loss(view: BatchView, estimates: Estimates, best: Choice, planned: Plan, other: Plan) -> float:
    """Seconds of step time that the other plan is expected to lose: its value against that of the planned one, at the
    step's shadow price of time."""
    values = []
    for plan in (planned, other):
        survival = estimates.of_width(plan.width).survival_of(plan.drafter)
        emitted = float(view.weights @ expected_accepted(survival, plan.lengths))
        depth = int(plan.passes[estimates.has_passes(plan.drafter)].max(initial=0))
        seconds = float(estimates.latency.draft_seconds(view, plan.drafter, depth, plan.width)[:, -1].sum())
        seconds += float(estimates.latency.target_seconds(view, plan.lengths.sum(keepdims=True))[0])
        values.append(emitted / best.value_of_time - seconds)
    return values[0] - values[1]


def _of_least_lag(view: BatchView, plan: Plan, num_rows: int) -> Plan:
    """The plan for that many of its rows at most: those whose draft KV lags least."""
    lag = np.where(plan.lengths > 0, of_drafter(view.draft_lags, plan.drafter), np.iinfo(np.int64).max)
    lengths = plan.lengths.copy()
    lengths[lag.argsort(kind="stable")[num_rows:]] = 0
    return replace(plan_by(plan.drafter, lengths), depths=plan.depths, width=plan.width)


def size_of(num_rows: int) -> int:
    """Number of a batch size, below NUM_SIZES."""
    return min(max(num_rows, 1).bit_length() - 1, NUM_SIZES - 1)
