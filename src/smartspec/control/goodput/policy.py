"""The lengths of largest predicted goodput, for every request of a step; guarded, and curious within a budget."""

from dataclasses import replace
from functools import partial

import numpy as np

from smartspec.control.goodput.asking import Asking
from smartspec.control.goodput.choice import Choice, Settled, best_choice
from smartspec.control.goodput.exploration import Exploration
from smartspec.control.goodput.guard import Guard
from smartspec.control.goodput.hysteresis import Hysteresis
from smartspec.control.goodput.lifetime import Lifetime
from smartspec.control.goodput.prefill_price import PrefillPrice
from smartspec.control.goodput.settings import GoodputSettings
from smartspec.control.goodput.stopping import drafted_as_confident
from smartspec.control.planner.lengths import LengthPlan
from smartspec.control.planner.verify_cut import convex_slopes, worth_verifying
from smartspec.control.policy import Estimates, Policy, expected_accepted, no_drafts
from smartspec.control.records import BatchView, Drafted, Outcome, Plan


class Goodput(Policy):
    """Maximises expected (weighted) tokens per second of step time; no drafts where they gain less than a margin.

    uniform_lengths: where given, all drafts of a step share one length out of these (or 0), as engines with captured
    graphs need; a row whose draft is shorter is padded by the engine. fairness: which mean of the requests' tokens is
    maximised, see planner; None for the settings' with a draft model, and the arithmetic mean without: model-free
    drafts come now and then, and a row without one in this step is not a slow request.
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
        self.queries: Asking = Asking(self.settings.exploration)
        self._hysteresis = Hysteresis(self.settings.hysteresis)
        self._lifetime = Lifetime(self.settings.draft_prefill)
        self._prefill_price = PrefillPrice(self.settings.prefill_price)

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        best = self._best_choice(view, estimates)
        if not self.guard.allows_drafts:
            found = replace(no_drafts(view.num_rows), reason=self.guard.reason)
            return self._settle(found, view, estimates, best)
        planned = best.draft_plan if best.plan.gain >= self.settings.min_gain else no_drafts(view.num_rows)
        explored = self.exploration.plan(
            view,
            estimates,
            best,
            planned,
            lambda other: self._best_choice(view, other),
            all_alike=bool(self.uniform_lengths),
        )
        return self._settle(planned if explored is None else explored, view, estimates, best)

    def cut(self, plan: Plan, drafted: Drafted, survival: np.ndarray) -> np.ndarray:
        """What is worth verifying now that the drafts are there: their cost is spent, their confidence known (see
        verify_cut). All of those that were made to learn from."""
        settled = plan.settled
        if not isinstance(settled, Settled) or settled.weights is None or drafted.confidence is None:
            return drafted.lengths
        best = settled.best
        seconds = best.target_seconds[: int(plan.lengths.sum()) + 1]
        gains = settled.weights[:, None] * survival
        return worth_verifying(gains, drafted.lengths, best.value_of_time * convex_slopes(seconds))

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        settled = plan.settled
        assert isinstance(settled, Settled), "the plan is another policy's"
        self.exploration.earn(outcome.view.num_rows, outcome.seconds.total)
        self._lifetime.observe(outcome)
        self._prefill_price.observe(outcome)
        self._tell_guard(settled, outcome)
        if self.uniform_lengths and settled.is_planned:
            self._tell_hysteresis(settled.best.plan, outcome)

    def end(self, request_id: int) -> None:
        self._lifetime.request_ended(request_id)
        self._prefill_price.request_ended()

    def state(self) -> dict:
        return {
            "guard": {"reason": self.guard.reason, "trips": self.guard.num_trips},
            "exploration_credit_seconds": self.exploration.credit,
            "asking_credit_seconds": self.queries.credit_by_name,
            "tokens_of_a_request": self._lifetime.remaining_tokens,
            "arrivals_are_open": self._prefill_price.arrivals_are_open,
        }

    def _settle(self, plan: Plan, view: BatchView, estimates: Estimates, best: Choice) -> Plan:
        """The plan with what it was decided by and, where that is the best choice, drafts that end where confidence
        says so."""
        is_planned, weights, saved_seconds = plan.reason is None, None, 0.0
        if is_planned and plan.lengths.any():
            saved_seconds = best.plan.gain * float(view.weights.sum()) / best.off_value_of_time
            if self.settings.uses_confidence and not self.uniform_lengths:
                weights = marginal_weights(view, best)
                plan = drafted_as_confident(view, estimates, best, weights)
        settled = Settled(best, estimates.latency, is_planned, weights, saved_seconds)
        alternatives = partial(self._alternatives, view, estimates, best, plan)
        return replace(plan, settled=settled, alternatives=alternatives)

    def _alternatives(self, view: BatchView, estimates: Estimates, best: Choice, plan: Plan) -> list[tuple[str, Plan]]:
        """The three best other plans with a limit on the length of a draft: the question of the step, asked again
        at the same prices. They are told apart by their number of draft tokens."""
        prices = best.value_of_time, best.off_value_of_time
        found: dict[int, tuple[str, Choice]] = {}
        for limit in sorted({0, *(self.uniform_lengths or range(estimates.max_draft_tokens + 1))}, reverse=True):
            limited = replace(view, max_draft_tokens=np.minimum(view.max_draft_tokens, limit))
            choice = self._best_choice(limited, estimates, prices)
            found[choice.plan.num_draft_tokens] = (f"at most {limit}" if limit else "off", choice)
        as_planned = plan.reason is None and plan.lengths.any()
        found.pop(best.plan.num_draft_tokens if as_planned else int(plan.lengths.sum()), None)
        others = sorted(found.values(), key=lambda other: -other[1].plan.gain)[:3]
        return [(label, replace(choice.draft_plan, survival=choice.survival)) for label, choice in others]

    def _tell_guard(self, settled: Settled, outcome: Outcome) -> None:
        view, latency = outcome.view, settled.latency
        speculated = bool(outcome.drafted.any())
        off_tokens = float(view.weights.sum())
        off_seconds = settled.best.plan.off_seconds
        if not speculated:
            # By what is known now: a first step that corrects a wrong profile must not count as its error for ever.
            off_seconds = float(latency.target_seconds(view, np.zeros(1))[0]) + latency.host_seconds
        self.guard.observe(
            off_tokens,
            off_tokens + float(view.weights @ outcome.accepted),
            outcome.seconds.total,
            off_seconds,
            settled.best.off_value_of_time,
            speculated,
            has_prefill=view.prefill_tokens > 0,
        )

    def _tell_hysteresis(self, plan: LengthPlan, outcome: Outcome) -> None:
        length = int(outcome.verified.max(initial=0))
        excess = outcome.seconds.total - (plan.seconds if length else plan.off_seconds)
        self._hysteresis.observe(length, None if outcome.view.prefill_tokens else excess)

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


def marginal_weights(view: BatchView, best: Choice) -> np.ndarray:
    """What one more token of each row is worth beside the plan, float [R]: its weight or, where the plan is fair, the
    gradient of the mean that is maximised. It depends on what a request gets on average, not on chance in a step."""
    if not best.fairness or not view.num_rows:
        return view.weights
    emitted = 1.0 + expected_accepted(best.survival, best.plan.lengths)
    total = float(view.weights.sum())
    mean = best.plan.goodput * best.plan.seconds / total if total else 1.0
    return view.weights * (mean / emitted) ** best.fairness
