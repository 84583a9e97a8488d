"""The draft lengths of largest predicted goodput for all requests of a step, within a budget of losses."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from smartspec.control.goodput.at_price import HeldPrices
from smartspec.control.goodput.budget import Budget
from smartspec.control.goodput.draft_prefill import Lifetime
from smartspec.control.goodput.exploration import Exploration
from smartspec.control.goodput.prefill_price import PrefillPrice
from smartspec.control.goodput.prices import Choice, Prices, best_choice
from smartspec.control.goodput.settings import GoodputSettings
from smartspec.control.goodput.stopping import ConfidenceStop, extend_by_confidence
from smartspec.control.goodput.uniform import LengthTimes, plan_uniform
from smartspec.control.planner.verify_cut import lengths_to_verify
from smartspec.control.policy import LEARN_STEPS, Estimates, Latency, Policy, no_drafts
from smartspec.control.records import BatchView, Drafted, Outcome, Plan, of_drafter, with_fields


@dataclass(frozen=True)
class Settled:
    """The basis of a plan, for its cut and for the comparison with its outcome."""

    best: Choice
    latency: Latency
    is_planned: bool  # the best choice was followed, not an exploration or a pause
    weights: np.ndarray | None = None  # float [R], worth of a token; None where drafts are not cut by confidence
    rule: ConfidenceStop | None = None  # ends the drafts


@dataclass(frozen=True)
class _Decided:
    """A decision that also holds for the next steps of the same rows (see HeldPrices.rows)."""

    rows: tuple | None  # None: for this step only
    weights: np.ndarray  # float [R], worth of a token of each row, see fair_weights
    best: Choice
    planned: Plan  # of the best choice
    followed: Plan  # the same, with drafts that end by confidence

    def is_valid(self, rows: tuple | None, view: BatchView) -> bool:
        """True if the decision holds for this step. rows: see HeldPrices.rows."""
        return rows is not None and rows == self.rows and sum(self.followed.lengths.tolist()) <= view.draft_token_budget

    def plan_for(self, view: BatchView) -> Plan:
        """Return the plan, with drafts no longer than they can be in this step."""
        found = of_drafter(view.draft_lengths, self.followed.drafter)
        lengths = np.minimum(np.minimum(found, view.max_draft_tokens), self.followed.lengths)
        if (rule := self.followed.settled.rule) is not None:
            rule.begin_step()
        return with_fields(self.followed, lengths=lengths)


class Goodput(Policy):
    """Maximises expected (weighted) tokens per second of step time.

    uniform_lengths: where given, all drafts of a step share one of these lengths (or 0), as engines with captured
    graphs need. The engine pads a row whose draft is shorter.
    """

    def __init__(
        self,
        uniform_lengths: tuple[int, ...] | None = None,
        *,
        settings: GoodputSettings | None = None,
    ):
        self.settings = settings or GoodputSettings()
        self.uniform_lengths = uniform_lengths
        if uniform_lengths:  # a batch of many requests: a step teaches much, and takes long
            self.learn_steps = LEARN_STEPS // 2
        self.budget = Budget(self.settings.budget)
        self._held = HeldPrices()
        self._times = LengthTimes(uniform_lengths) if uniform_lengths else None
        self._exploration = Exploration(self.settings.budget, self.budget, self._times)
        self._last: _Decided | None = None
        self._lifetime = Lifetime(self.settings.draft_prefill)
        self._prefill_price = PrefillPrice(self.settings.prefill_price)

    def queries(self, num_rows: int) -> bool:
        return self.budget.can_query(num_rows)

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        rows, last = self._held.rows(view, estimates), self._last
        if last is None or not last.is_valid(rows, view):
            last = self._last = self._decide(rows, view, estimates)
        best, planned, view = last.best, last.planned, with_fields(view, weights=last.weights)
        if self.budget.reason is not None:
            paused = with_fields(no_drafts(view.num_rows), reason=self.budget.reason)
            return self._settle(paused, view, estimates, best)
        explored = self._exploration.plan(view, estimates, best, planned, partial(self._choose, view))
        if explored is not None:
            return self._settle(explored, view, estimates, best)
        return last.plan_for(view)

    def cut(self, plan: Plan, drafted: Drafted, survival: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the number of tokens of each draft that are worth verifying, now that drafting is paid and confidence
        is known (see verify_cut): int [R]. Drafts of explorations are verified whole."""
        settled = plan.settled
        if not isinstance(settled, Settled) or settled.weights is None or drafted.confidence is None:
            return drafted.lengths
        price = settled.best.prices.time * settled.best.token_seconds
        seen = settled.rule and settled.rule.survival_of(drafted.lengths)
        gains = settled.weights[:, None] * (survival() if seen is None else seen)
        return lengths_to_verify(gains, drafted.lengths, price)

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        view, settled = outcome.view, plan.settled
        self._lifetime.observe(outcome)
        self._prefill_price.observe(outcome)
        if isinstance(settled, Settled) and view.num_rows:
            self._compare(settled, outcome)
        if self._times and view.num_rows:
            self._times.observe(outcome)
        if view.num_rows:
            self._exploration.step(view.num_rows)
            has_prefill = view.prefill_tokens > 0
            self.budget.settle(view.num_rows, outcome.seconds, queried=plan.queried, has_prefill=has_prefill)

    def end(self, request_id: int) -> None:
        self._lifetime.request_ended(request_id)
        self._prefill_price.request_ended()

    def state(self) -> dict:
        return {
            "budget": {
                "seconds_for_queries": self.budget.for_queries.get(False, 0.0),
                "seconds_for_queries_of_one_request": self.budget.for_queries.get(True, 0.0),
                "seconds_for_explorations": self.budget.for_explorations,
                "reason": self.budget.reason,
                "trips": self.budget.num_trips,
            },
            "tokens_of_a_request": self._lifetime.remaining_tokens,
            "arrivals_are_open": self._prefill_price.has_open_arrivals,
        }

    def _decide(self, rows: tuple | None, view: BatchView, estimates: Estimates) -> _Decided:
        weights = fair_weights(view, estimates, self.settings.fairness)
        view = with_fields(view, weights=weights)
        best = self._best(view, estimates)
        planned = best.draft_plan if best.plan.gain > 0 else no_drafts(view.num_rows)
        followed = self._settle_planned(planned, view, estimates, best)
        return _Decided(None if best.invested_seconds else rows, weights, best, planned, followed)

    def _settle_planned(self, plan: Plan, view: BatchView, estimates: Estimates, best: Choice) -> Plan:
        """Return the plan of the best choice, with drafts that end by confidence."""
        is_chain, weights = plan.width == 1 and any(plan.lengths.tolist()), None
        if is_chain and self.settings.uses_confidence and not self.uniform_lengths and not best.is_found:
            weights = view.weights
            plan = extend_by_confidence(view, estimates, best, weights)
        return self._settle(plan, view, estimates, best, is_planned=True, weights=weights)

    def _settle(self, plan: Plan, view, estimates: Estimates, best: Choice, *, is_planned=False, weights=None) -> Plan:
        rule = plan.stop if isinstance(plan.stop, ConfidenceStop) else None
        settled = Settled(best, estimates.latency, is_planned, weights, rule)
        followed = best.plan if is_planned and any(plan.lengths.tolist()) else plan
        others = self._alternatives(view, estimates, best, followed.lengths)
        survival = None if weights is None else best.survival
        return with_fields(plan, settled=settled, alternatives=others, is_whole=weights is None, survival=survival)

    def _alternatives(
        self, view: BatchView, estimates: Estimates, best: Choice, planned: np.ndarray
    ) -> Callable[[], list[tuple[str, Plan]]]:
        """Return a function that finds the three best other plans with a limit on the length of a draft, by the same
        prices. Two plans differ if their numbers of draft tokens do. planned: int [R], the lengths that were chosen."""

        def others() -> list[tuple[str, Plan]]:
            longest = int(best.plan.lengths.max(initial=0))  # a higher limit changes nothing
            found = {best.plan.num_draft_tokens: (f"at most {longest}" if longest else "off", best)}
            limits = {0, *(self.uniform_lengths or range(longest))}
            for limit in sorted((limit for limit in limits if limit < longest), reverse=True):
                limited = replace(view, max_draft_tokens=np.minimum(view.max_draft_tokens, limit))
                choice = self._choose(limited, estimates, best.prices)
                found[choice.plan.num_draft_tokens] = (f"at most {limit}" if limit else "off", choice)
            found.pop(int(planned.sum()), None)
            first = sorted(found.values(), key=lambda other: -other[1].plan.gain)[:3]
            return [
                (label, with_fields(choice.draft_plan, survival=_survival(estimates, choice)))
                for label, choice in first
            ]

        return others

    def _compare(self, settled: Settled, outcome: Outcome) -> None:
        view, best, seconds, has_prefill = outcome.view, settled.best, outcome.seconds, outcome.view.prefill_tokens > 0
        if not any(outcome.drafted.tolist()):
            # Predicted by all that is known now. Else a first step that corrects a wrong profile counts as an error for
            # long.
            self.budget.observe_plain(seconds.passes / self._off_seconds(view, settled.latency), has_prefill)
            return
        num_tokens, host_seconds = sum(view.weights.tolist()), settled.latency.host_seconds
        gained_steps = float(view.weights.dot(outcome.accepted)) / num_tokens
        alone_seconds = num_tokens / best.prices.off - host_seconds
        # The plan may be of an earlier step: of the same requests, but beside other prefill.
        is_known = not has_prefill and self._times is None
        plain = best.plan.off_seconds - host_seconds if is_known else self._off_seconds(view, settled.latency)
        off_seconds = plain + gained_steps * alone_seconds
        saved_seconds = best.plan.gain * num_tokens / best.prices.off if settled.is_planned else 0.0
        took = self.budget.spread(seconds.passes, best.invested_seconds if settled.is_planned else 0.0)
        self.budget.compare(view.num_rows, took, off_seconds, gained_steps, saved_seconds, has_prefill)

    def _off_seconds(self, view: BatchView, latency: Latency) -> float:
        """Return the seconds of the target's pass without draft tokens."""
        modelled = latency.off_seconds(view)
        return float(self._times.seconds(view, [0], np.array([modelled]))[0]) if self._times else modelled

    def _best(self, view: BatchView, estimates: Estimates) -> Choice:
        held = self._held.choice(view, estimates, is_uniform=bool(self.uniform_lengths))
        if held is not None:
            return held
        choice = self._choose(view, estimates)
        self._held.keep(view, estimates, choice)
        return choice

    def _choose(self, view: BatchView, estimates: Estimates, prices: Prices | None = None) -> Choice:
        return best_choice(
            view,
            estimates,
            self.settings,
            plan_uniform=partial(plan_uniform, self._times) if self._times else None,
            remaining_tokens=self._lifetime.remaining_tokens,
            prefill_price=self._prefill_price,
            prices=prices,
        )


def _survival(estimates: Estimates, choice: Choice) -> np.ndarray:
    return estimates.of_width(choice.width).survival_of(choice.drafter)


def fair_weights(view: BatchView, estimates: Estimates, fairness: float) -> np.ndarray:
    """Return the worth of a token of each row: float [R], of the same sum as view.weights.

    It falls with the tokens that a step of the request is expected to emit, to the power of fairness: a request that
    drafts badly takes longer, and waits for each token of its own. Without a draft model it is the row's weight:
    model-free drafts are rare, and a row without one in this step is not a slow request."""
    models = [number for number in estimates.models if any(view.drafters[number].lengths.tolist())]
    if not fairness or not models or view.num_rows < 2:
        return view.weights
    emitted = 1.0 + estimates.survival.sum(axis=2)[models].max(axis=0)
    weights = view.weights * emitted**-fairness
    total = float(weights.sum())
    return weights * (float(view.weights.sum()) / total) if total else view.weights
