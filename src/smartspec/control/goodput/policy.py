"""The lengths of largest predicted goodput, for every request of a step; guarded, and curious within a budget."""

from dataclasses import replace

import numpy as np

from smartspec.control.goodput.arrivals import Arrivals
from smartspec.control.goodput.choice import Choice, best_choice
from smartspec.control.goodput.exploration import (
    LONGER_GROWTH,
    NON_SPECULATIVE_GROWTH,
    NON_SPECULATIVE_SHARE,
    PROBE_SHARE,
    ExplorationBudget,
    Spacing,
)
from smartspec.control.goodput.fairness import fairness_of
from smartspec.control.goodput.guard import Guard
from smartspec.control.goodput.prefill_price import PrefillPrice
from smartspec.control.goodput.probing import expected_loss, longer_drafts, plan_probe
from smartspec.control.goodput.remaining_tokens import RemainingTokens
from smartspec.control.goodput.stopping import drafted_as_confident
from smartspec.control.planner.lengths import LengthPlan
from smartspec.control.planner.verify_cut import convex_slopes, worth_verifying
from smartspec.control.policy import Estimates, Latency, Policy, expected_accepted, no_drafts
from smartspec.control.records import BatchView, Drafted, DraftPlan, StepFeedback

# Picking the best of many noisy predictions is biased towards those that are too rosy, while "off" is a single one,
# measured best. A predicted gain below this is not worth the risk of falling behind plain decoding.
MIN_GAIN = 0.01
PROBE_SPACING = 4  # steps between looks at whether a probe would pay


class Goodput(Policy):
    """Maximises expected (weighted) tokens per second of step time; no drafts where they gain less than MIN_GAIN.

    uniform_lengths: where given, all drafts of a step share one length out of these (or 0), as engines with captured
    graphs need; a row whose draft is shorter is padded by the engine. fairness: which mean of the requests' tokens is
    maximised, see planner; None for the one that suits the arrivals. note: why the last plan was not the planner's.
    """

    def __init__(self, uniform_lengths: tuple[int, ...] | None = None, *, fairness: float | None = None):
        self.uniform_lengths = uniform_lengths
        self.fairness = fairness
        self.guard = Guard()
        self.probe_budget = ExplorationBudget(PROBE_SHARE)
        self.non_speculative_budget = ExplorationBudget(NON_SPECULATIVE_SHARE, credit=None)
        self.note: str | None = None
        self._best: Choice  # of the step under way
        self._latency: Latency
        self._weights = np.empty(0)
        self._remaining_tokens = RemainingTokens()
        self._arrivals = Arrivals()
        self._prefill_price = PrefillPrice(self._arrivals)
        self._non_speculative_steps = Spacing(NON_SPECULATIVE_GROWTH)
        self._longer_steps = Spacing(LONGER_GROWTH)
        self._steps_since_probe = 0
        self._steps_since_tested: np.ndarray | int = 0  # by drafter

    def plan_draft(self, view: BatchView, estimates: Estimates) -> DraftPlan:
        best = self._best_choice(view, estimates)
        self._best, self._latency = best, estimates.latency
        self._weights = marginal_weights(view, estimates, best, self._fairness(view, estimates))
        self.note = None
        if not self.guard.allows_drafts:
            self.note = self.guard.reason
            return no_drafts(view.num_rows)
        if best.plan.gain < MIN_GAIN:
            return self._probe(view, estimates, best.plan) or no_drafts(view.num_rows)
        if self._wants_non_speculative_step(view, best.plan):
            self.note = "non-speculative step, to know what one costs"
            return no_drafts(view.num_rows)
        return self._longer_drafts(view, estimates, best) or self._confident_drafts(view, estimates, best)

    def plan_verify(
        self, view: BatchView, plan: DraftPlan, drafted: Drafted, survival: np.ndarray, latency: Latency
    ) -> np.ndarray:
        """What is worth verifying now that the drafts are there: their cost is spent, their confidence known (see
        verify_cut). All of those that were made to learn from."""
        if self.uniform_lengths or self.note or drafted.confidence is None or not drafted.lengths.any():
            return drafted.lengths
        seconds = self._best.target_seconds[: int(plan.lengths.sum()) + 1]
        gains = self._weights[:, None] * survival
        return worth_verifying(gains, drafted.lengths, self._best.value_of_time * convex_slopes(seconds))

    def alternatives(self, view: BatchView, estimates: Estimates, plan: DraftPlan) -> list[tuple[str, DraftPlan]]:
        """The three best other plans with a limit on the length of a draft: the question of the step, asked again
        at the same prices. They are told apart by their number of draft tokens."""
        prices = self._best.value_of_time, self._best.off_value_of_time
        found: dict[int, tuple[str, Choice]] = {}
        for limit in sorted({0, *(self.uniform_lengths or range(estimates.max_draft_tokens + 1))}, reverse=True):
            limited = replace(view, max_draft_tokens=np.minimum(view.max_draft_tokens, limit))
            choice = self._best_choice(limited, estimates, prices)
            found[choice.plan.num_draft_tokens] = (f"at most {limit}" if limit else "off", choice)
        as_planned = self.note is None and plan.lengths.any()
        found.pop(self._best.plan.num_draft_tokens if as_planned else int(plan.lengths.sum()), None)
        best = sorted(found.values(), key=lambda other: -other[1].plan.gain)[:3]
        return [(label, choice.draft_plan) for label, choice in best]

    def observe(self, feedback: StepFeedback) -> None:
        seconds, num_rows = feedback.seconds.total, feedback.view.num_rows
        speculated = bool(feedback.drafted.any())
        self.probe_budget.earn(seconds)
        self.non_speculative_budget.earn(seconds)
        self._remaining_tokens.observe(feedback)
        self._arrivals.observe(feedback.view)
        self._prefill_price.observe(feedback)
        tests = np.bincount(feedback.plan.drafter[feedback.tested > 0], minlength=len(feedback.view.drafters))
        self._steps_since_tested = np.where(tests, 0, self._steps_since_tested + 1)
        self._non_speculative_steps.observe(num_rows, happened=not speculated)
        self._longer_steps.observe(num_rows, happened=False)
        self._tell_guard(feedback, speculated)

    def forget(self, request_id: int) -> None:
        self._remaining_tokens.request_ended(request_id)
        self._arrivals.request_ended()

    def state(self) -> dict:
        return {
            "note": self.note,
            "guard": {"reason": self.guard.reason, "trips": self.guard.num_trips},
            "probe_credit_seconds": self.probe_budget.credit,
            "non_speculative_step_credit_seconds": self.non_speculative_budget.credit,
            "tokens_of_a_new_request": self._remaining_tokens.of_new,
            "usual_part_of_prefill_price": self._prefill_price.usual_part,
            "openness": self._arrivals.openness,
        }

    def _tell_guard(self, feedback: StepFeedback, speculated: bool) -> None:
        view, best = feedback.view, self._best
        off_tokens = float(view.weights.sum())
        emitted = off_tokens + float(view.weights @ feedback.accepted)
        off_seconds = best.plan.off_seconds
        if not speculated:
            # By what is known now: a first step that corrects a wrong profile must not count as its error for ever.
            off_seconds = float(self._latency.target_seconds(view, np.zeros(1))[0]) + self._latency.host_seconds
        self.guard.observe(
            off_tokens,
            emitted,
            feedback.seconds.total,
            off_seconds,
            best.off_value_of_time,
            speculated,
            has_prefill=view.prefill_tokens > 0,
        )

    def _best_choice(self, view: BatchView, estimates: Estimates, prices: tuple[float, float] | None = None) -> Choice:
        remaining = None if not estimates.models else self._remaining_tokens.of(view)
        fairness = self._fairness(view, estimates)
        return best_choice(view, estimates, self.uniform_lengths, fairness, remaining, self._prefill_price, prices)

    def _fairness(self, view: BatchView, estimates: Estimates) -> float:
        return fairness_of(estimates, self._arrivals) if self.fairness is None else self.fairness

    def _confident_drafts(self, view: BatchView, estimates: Estimates, best: Choice) -> DraftPlan:
        if self.uniform_lengths:
            return best.draft_plan
        return drafted_as_confident(view, estimates, best, self._weights)

    def _wants_non_speculative_step(self, view: BatchView, best: LengthPlan) -> bool:
        """Whether to measure a non-speculative step now; its budget pays for the tokens it is expected to lose."""
        if not self._non_speculative_steps.is_due(view.num_rows) or view.prefill_tokens:
            return False
        if not self.non_speculative_budget.buy(best.off_seconds * (1.0 - best.off_goodput / best.goodput)):
            return False
        self._non_speculative_steps.planned(view.num_rows)
        return True

    def _longer_drafts(self, view: BatchView, estimates: Estimates, best: Choice) -> DraftPlan | None:
        """Now and then, longer drafts than seem best, to learn what their tokens are worth and such a pass takes."""
        if not self._longer_steps.is_due(view.num_rows) or view.prefill_tokens:
            return None
        drafts = longer_drafts(
            view, estimates, best.draft_plan, lambda others: self._best_choice(view, others).draft_plan
        )
        if drafts is None or not self.probe_budget.buy(expected_loss(view, estimates, drafts, best.plan.goodput)):
            self._longer_steps.postponed(view.num_rows)
            return None
        self._longer_steps.planned(view.num_rows)
        self.note = "longer drafts, to know what they are worth"
        return drafts

    def _probe(self, view: BatchView, estimates: Estimates, off: LengthPlan) -> DraftPlan | None:
        """A small draft that is expected to lose, where knowing may win more."""
        self._steps_since_probe += 1
        if self._steps_since_probe < PROBE_SPACING or not view.num_rows:
            return None
        self._steps_since_probe = 0
        probe = plan_probe(
            view,
            estimates,
            lambda others: self._best_choice(view, others).plan,
            self._best.value_of_time,
            self.probe_budget.max_credit(off.off_seconds),
            np.zeros(len(estimates.drafters)) + self._steps_since_tested,
            self.uniform_lengths,
        )
        if probe is None or not self.probe_budget.buy(probe.price_seconds):
            return None
        self.note = f"probe: knowing a draft model's acceptance may gain {probe.value:.1%}"
        return probe.draft_plan


def marginal_weights(view: BatchView, estimates: Estimates, best: Choice, fairness: float) -> np.ndarray:
    """What one more token of each row is worth beside the plan, float [R]: its weight or, where the plan is fair, the
    gradient of the mean that is maximised. It depends on what a request gets on average, not on chance in a step."""
    if not fairness or not view.num_rows:
        return view.weights
    emitted = 1.0 + expected_accepted(estimates.survival_of(best.drafter), best.plan.lengths)
    total = float(view.weights.sum())
    mean = best.plan.goodput * best.plan.seconds / total if total else 1.0
    return view.weights * (mean / emitted) ** fairness
