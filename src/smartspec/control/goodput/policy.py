"""The lengths of largest predicted goodput, for every request of a step; guarded, and curious within a budget."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from smartspec.control.goodput.asking import Asking
from smartspec.control.goodput.choice import Choice, best_choice
from smartspec.control.goodput.exploration import Exploration
from smartspec.control.goodput.guard import Guard
from smartspec.control.goodput.hysteresis import Hysteresis
from smartspec.control.goodput.lifetime import Lifetime
from smartspec.control.goodput.prefill_price import PrefillPrice
from smartspec.control.goodput.settings import GoodputSettings
from smartspec.control.goodput.stopping import drafted_as_confident
from smartspec.control.planner.lengths import LengthPlan
from smartspec.control.planner.verify_cut import convex_slopes, worth_verifying
from smartspec.control.policy import Estimates, Latency, Policy, expected_accepted, no_drafts
from smartspec.control.records import Asked, BatchView, Drafted, DrafterSpec, DraftPlan, StepFeedback


class Goodput(Policy):
    """Maximises expected (weighted) tokens per second of step time; no drafts where they gain less than a margin.

    uniform_lengths: where given, all drafts of a step share one length out of these (or 0), as engines with captured
    graphs need; a row whose draft is shorter is padded by the engine. fairness: which mean of the requests' tokens is
    maximised, see planner; None for the settings' with a draft model, and the arithmetic mean without: model-free
    drafts come now and then, and a row without one in this step is not a slow request. note: why the last plan was not
    the planner's.
    """

    def __init__(
        self,
        uniform_lengths: tuple[int, ...] | None = None,
        *,
        fairness: float | None = None,
        settings: GoodputSettings | None = None,
    ):
        self.settings = settings or GoodputSettings()
        self.uniform_lengths = uniform_lengths
        self.fairness = fairness
        self.guard = Guard(self.settings.guard)
        self.exploration = Exploration(self.settings.exploration)
        self.asking = Asking(self.settings.exploration)
        self.note: str | None = None
        self._saved_seconds = 0.0  # that the drafts of the step under way are expected to save
        self._hysteresis = Hysteresis(self.settings.hysteresis)
        self._lifetime = Lifetime(self.settings.draft_prefill)
        self._prefill_price = PrefillPrice(self.settings.prefill_price)
        self._best: Choice  # of the step under way
        self._latency: Latency

    def asks_drafters(self, num_rows: int, drafters: tuple[DrafterSpec, ...]) -> Asked:
        self._saved_seconds = 0.0
        return self.asking.who(num_rows, drafters)

    def plan_draft(self, view: BatchView, estimates: Estimates) -> DraftPlan:
        best = self._best_choice(view, estimates)
        self._best, self._latency, self.note = best, estimates.latency, None
        if not self.guard.allows_drafts:
            self.note = self.guard.reason
            return no_drafts(view.num_rows)
        planned = best.draft_plan if best.plan.gain >= self.settings.min_gain else no_drafts(view.num_rows)
        explored = self.exploration.plan(
            view,
            estimates,
            best,
            planned,
            lambda other: self._best_choice(view, other),
            all_alike=bool(self.uniform_lengths),
        )
        if explored is not None:
            plan, self.note = explored
            return plan
        if planned.lengths.any():
            self._saved_seconds = best.plan.gain * float(view.weights.sum()) / best.off_value_of_time
        if not planned.lengths.any() or not self.settings.uses_confidence or self.uniform_lengths:
            return planned
        return drafted_as_confident(view, estimates, best, self._weights(view))

    def plan_verify(
        self, view: BatchView, plan: DraftPlan, drafted: Drafted, survival: np.ndarray, latency: Latency
    ) -> np.ndarray:
        """What is worth verifying now that the drafts are there: their cost is spent, their confidence known (see
        verify_cut). All of those that were made to learn from."""
        if self.uniform_lengths or self.note or drafted.confidence is None or not self.settings.uses_confidence:
            return drafted.lengths
        seconds = self._best.target_seconds[: int(plan.lengths.sum()) + 1]
        gains = self._weights(view)[:, None] * survival
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
        self.observer()(feedback)

    def observer(self) -> Callable[[StepFeedback], None]:
        return partial(self._observe_plan, self._best.plan, self._best.off_value_of_time, self.note is None)

    def _observe_plan(
        self, plan: LengthPlan, off_value_of_time: float, is_planned: bool, feedback: StepFeedback
    ) -> None:
        """is_planned: whether the plan was followed, and no guard or exploration."""
        self.exploration.earn(feedback.view.num_rows, feedback.seconds.total)
        self._lifetime.observe(feedback)
        self._prefill_price.observe(feedback)
        self._tell_guard(plan, off_value_of_time, feedback)
        if self.uniform_lengths and is_planned:
            self._tell_hysteresis(plan, feedback)

    def observe_step(self, feedback: StepFeedback, asked: Asked) -> None:
        self.asking.observe(feedback, asked, self._saved_seconds)

    def forget(self, request_id: int) -> None:
        self._lifetime.request_ended(request_id)
        self._prefill_price.request_ended()

    def state(self) -> dict:
        return {
            "note": self.note,
            "guard": {"reason": self.guard.reason, "trips": self.guard.num_trips},
            "exploration_credit_seconds": self.exploration.credit,
            "asking_credit_seconds": {level.name.lower(): credit for level, credit in self.asking.credit.items()},
            "tokens_of_a_request": self._lifetime.remaining_tokens,
            "arrivals_are_open": self._prefill_price.arrivals_are_open,
        }

    def _tell_guard(self, plan: LengthPlan, off_value_of_time: float, feedback: StepFeedback) -> None:
        view = feedback.view
        speculated = bool(feedback.drafted.any())
        off_tokens = float(view.weights.sum())
        off_seconds = plan.off_seconds
        if not speculated:
            # By what is known now: a first step that corrects a wrong profile must not count as its error for ever.
            off_seconds = float(self._latency.target_seconds(view, np.zeros(1))[0]) + self._latency.host_seconds
        self.guard.observe(
            off_tokens,
            off_tokens + float(view.weights @ feedback.accepted),
            feedback.seconds.total,
            off_seconds,
            off_value_of_time,
            speculated,
            has_prefill=view.prefill_tokens > 0,
        )

    def _tell_hysteresis(self, plan: LengthPlan, feedback: StepFeedback) -> None:
        length = int(feedback.verified.max(initial=0))
        excess = feedback.seconds.total - (plan.seconds if length else plan.off_seconds)
        self._hysteresis.observe(length, None if feedback.view.prefill_tokens else excess)

    def _best_choice(self, view: BatchView, estimates: Estimates, prices: tuple[float, float] | None = None) -> Choice:
        return best_choice(
            view,
            estimates,
            self.settings,
            uniform=(self.uniform_lengths, self._hysteresis) if self.uniform_lengths else None,
            fairness=self.fairness,
            remaining_tokens=self._lifetime.remaining_tokens,
            prefill_price=self._prefill_price if self.settings.prefill_price.is_on else None,
            prices=prices,
        )

    def _weights(self, view: BatchView) -> np.ndarray:
        """What one more token of each row is worth beside the step's choice: float [R]."""
        return marginal_weights(view, self._best)


def marginal_weights(view: BatchView, best: Choice) -> np.ndarray:
    """What one more token of each row is worth beside the plan, float [R]: its weight or, where the plan is fair, the
    gradient of the mean that is maximised. It depends on what a request gets on average, not on chance in a step."""
    if not best.fairness or not view.num_rows:
        return view.weights
    emitted = 1.0 + expected_accepted(best.survival, best.plan.lengths)
    total = float(view.weights.sum())
    mean = best.plan.goodput * best.plan.seconds / total if total else 1.0
    return view.weights * (mean / emitted) ** best.fairness
