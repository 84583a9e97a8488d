"""The policy `goodput`: the draft tokens that are worth their time, for every request of a step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from smartspec.control.estimates import Estimates, Latency
from smartspec.control.goodput.candidates import Candidate, candidates
from smartspec.control.goodput.price import DraftPrefill, PrefillPrice, best_price, costs_of
from smartspec.control.goodput.worth import ConfidenceStop, Costs, kept_tokens, lengths_to_verify
from smartspec.control.guard import Guard, Queries, Trials, size_of
from smartspec.control.planning import fair_weights, length_caps, no_drafts, within_budget
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Drafted, Outcome, Plan, of_drafter, with_fields

GOOD_ACCEPTANCE = 0.8  # that a trial hopes for
NON_SPECULATIVE = "non-speculative step, to know what one costs"
LONGER = "longer drafts, to know what they are worth"


@dataclass(frozen=True)
class GoodputSettings:
    """What is chosen, and an ablation turns off or a reader may want to change."""

    fairness: float = 0.5  # see planning.fair_weights; 0: tokens of all requests count alike
    uses_confidence: bool = True  # drafts end early and are cut by confidence
    widths: tuple[int, ...] = (1, 4)  # of drafts made in passes: chains, and trees
    share: float = 0.003  # of step time, that queries and trials may lose; 0: neither, and no guard


@dataclass(frozen=True)
class Choice:
    """The tokens of one assignment of drafters that are kept at a price."""

    candidate: Candidate
    kept: np.ndarray  # bool [R, K]
    costs: Costs
    price: float  # tokens per second
    invested: float = 0.0  # seconds of draft prefills that begin

    @cached_property
    def num(self) -> int:
        """The number of kept tokens."""
        return int(np.count_nonzero(self.kept))

    @cached_property
    def saved_seconds(self) -> float:
        """What the drafts bring, as seconds at the price, less the seconds they take."""
        worth = float(self.candidate.worth.sum(where=self.kept))
        return worth / self.price - self.costs.of_drafts(self.kept, self.candidate.depths)

    def to_plan(self, **more) -> Plan:
        """Return the plan of the kept tokens, verified as far as they are drafted."""
        lengths, estimates = self.kept.sum(axis=1), self.candidate.estimates
        drafter, depths = np.where(lengths > 0, self.candidate.drafter, -1), None
        if estimates.depths is not None and self.candidate.depths is not None:
            depths = (self.candidate.depths * self.kept).max(axis=1, initial=0)
        return Plan(lengths, drafter, depths=depths, width=estimates.width, **more)


class Settled(NamedTuple):
    """What a plan was made by, for its cut and for the guard."""

    invested: float = 0.0  # seconds of draft prefills that begin
    rule: ConfidenceStop | None = None  # ends the drafts and cuts them


@dataclass(frozen=True)
class _Held:
    """The last plan in full. Its price and costs hold until something is learned, and the plan
    itself for the same rows."""

    key: tuple
    rows: bytes  # empty where drafts are found anew in each step, or a draft prefill begins
    best: Choice
    plan: Plan


class Goodput(Policy):
    """Maximises expected (weighted) tokens per second of step time."""

    def __init__(self, settings: GoodputSettings | None = None):
        self.settings = settings or GoodputSettings()
        self._guard, self._queries = Guard(), Queries(self.settings.share)
        self._trials = Trials(self.settings.share)
        self._draft_prefill, self._prefill_price = DraftPrefill(), PrefillPrice()
        self._held: _Held | None = None
        self._price, self._num_kept = 0.0, 0  # of the last plan in full
        self._latency: Latency | None = None

    def queries(self, num_rows: int) -> bool:
        is_paused = self._guard.reason(num_rows) is not None
        return not self.settings.share or (not is_paused and self._queries.can_query(num_rows))

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        if estimates.num_learned != 0:  # a profile that nothing has corrected yet is not judged by
            self._latency = estimates.latency
        reason = self._guard.reason(view.num_rows)
        if reason is not None or not view.weights.any():
            return with_fields(no_drafts(view.num_rows), reason=reason)
        is_due = self._trials.is_due(view.num_rows)
        key, held = (estimates.num_learned, size_of(view.num_rows)), self._held
        if is_due or view.prefill_tokens or (held is not None and held.key != key):
            held = None
        if held is not None and held.rows == view.request_ids.tobytes():
            repeated = self._again(held.plan, view)
            if repeated.lengths.sum() <= view.draft_token_budget:
                return repeated
        view = fair_weights(view, estimates, self.settings.fairness)
        settled = held.best if held else None
        like = settled.candidate if settled else None
        found = candidates(view, estimates, self.settings.widths, like)
        choices = [self._choose(view, each, settled) for each in found]
        best = max(choices, key=lambda choice: choice.saved_seconds)
        plan = self._to_plan(view, best)
        if held is None:
            self._price, self._num_kept = best.price, best.num
        self._held = None
        if not view.prefill_tokens and estimates.num_learned is not None:
            has_free = len(estimates.models) < len(estimates.drafters)
            repeats = best.num and not best.invested and not has_free
            self._held = _Held(key, view.request_ids.tobytes() if repeats else b"", best, plan)
        return (self._trial(view, best) if is_due else None) or plan

    def cut(self, plan: Plan, drafted: Drafted, survival: Callable[[], np.ndarray]) -> np.ndarray:
        rule = plan.settled and plan.settled.rule
        if rule is None or drafted.confidence is None:
            return drafted.lengths
        seen = rule.survival.of(drafted.lengths)
        gains = rule.weights[:, None] * (survival() if seen is None else seen)
        return lengths_to_verify(gains, drafted.lengths, rule.token_price)

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        view, seconds = outcome.view, outcome.seconds
        self._draft_prefill.observe(outcome)
        self._prefill_price.observe(outcome)
        if view.num_rows and self._latency is not None and self.settings.share:
            saved = self._judge(plan, outcome, self._latency)
            self._trials.settle(view.num_rows, seconds.total)
            is_busy = plan.queried or view.prefill_tokens > 0  # prompts keep the host busy, too
            self._queries.settle(view.num_rows, seconds, saved, is_busy)

    def end(self, request_id: int) -> None:
        self._draft_prefill.end(request_id)
        self._prefill_price.end()

    def state(self) -> dict:
        return {
            "price": self._price,
            "seconds_for_queries": self._queries.account.seconds,
            "seconds_for_trials": self._trials.account.seconds,
            "pauses": self._guard.num_trips,
            "pause": self._guard.pause,
        }

    @staticmethod
    def _again(plan: Plan, view: BatchView) -> Plan:
        if rule := plan.settled.rule:
            rule.survival.begin_step()
        caps = np.minimum(of_drafter(view.draft_lengths, plan.drafter), view.row_caps)
        return with_fields(plan, lengths=np.minimum(caps, plan.lengths))

    def _choose(self, view: BatchView, candidate: Candidate, settled: Choice | None) -> Choice:
        """Return the tokens of a candidate that are worth their time. settled: a choice whose price
        and costs hold."""
        latency, total, invested = candidate.estimates.latency, float(view.weights.sum()), 0.0
        if settled is not None:
            price, costs = settled.price, settled.costs
            kept = kept_tokens(price, candidate.worth, candidate.depths, costs)
        else:
            alone = view.without_prefill() if view.prefill_tokens else view
            costs = costs_of(alone, candidate, latency, self._num_kept)
            price, kept = best_price(self._price, candidate, costs, total)
        if candidate.late is not None:
            of_time = self._prefill_price.of(price, view, latency, costs.token)
            prefill = self._draft_prefill.seconds(view, candidate, latency)
            pays = self._draft_prefill.pays(candidate, kept, of_time, costs, prefill)
            candidate = with_fields(candidate, worth=candidate.worth * pays[:, None])
            kept = kept * pays[:, None]
            if settled is None:
                price, kept = best_price(price, candidate, costs, total)
        if view.prefill_tokens:
            costs = costs_of(view, candidate, latency, self._num_kept)
            price = self._prefill_price.of(price, view, latency, costs.token)
            kept = kept_tokens(price, candidate.worth, candidate.depths, costs)
        kept = within_budget(kept, candidate.worth, view.draft_token_budget)
        if candidate.late is not None:
            invested = float(prefill[candidate.late & kept.any(axis=1)].sum())
        found = Choice(candidate, kept, costs, price, invested)
        if found.saved_seconds > 0:
            return found
        return Choice(candidate, np.zeros(kept.shape, dtype=bool), costs, price)

    def _to_plan(self, view: BatchView, best: Choice) -> Plan:
        """Return the plan of a choice, with drafts that end by confidence where they are chains of
        a drafter that reports it."""
        if not best.num:
            return no_drafts(view.num_rows)
        plan, estimates = best.to_plan(settled=Settled(best.invested)), best.candidate.estimates
        acceptance = estimates.acceptance if self.settings.uses_confidence else None
        if plan.width > 1 or acceptance is None:
            return plan
        confident = [number for number in best.candidate.group if acceptance.has_confidence(number)]
        ends = np.isin(plan.drafter, confident) if confident else None
        if ends is None or not ends.any():
            return plan
        longest = length_caps(view, plan.drafter, estimates.max_draft_tokens)
        lengths = np.where(ends, longest, plan.lengths)
        if lengths.sum() > view.draft_token_budget:
            lengths = plan.lengths
        drafter, price = np.where(ends, plan.drafter, -1), best.price
        token_price, pass_price = price * best.costs.token, price * best.costs.passes
        rule = ConfidenceStop(estimates, drafter, view.weights, pass_price, token_price)
        return with_fields(plan, lengths=lengths, stop=rule, settled=Settled(best.invested, rule))

    def _trial(self, view: BatchView, best: Choice) -> Plan | None:
        """Return a plan to learn from, if one is useful and paid: every second one is a step
        without drafts, the others have longer drafts than are believed to be worth their time."""
        plan = None
        if best.num and not view.prefill_tokens and self._trials.is_plain(view.num_rows):
            if self._trials.account.pay(best.saved_seconds):
                plan = with_fields(no_drafts(view.num_rows), reason=NON_SPECULATIVE)
        elif best.candidate.estimates.width == 1:
            plan = self._longer(view, best)
        self._trials.made(view.num_rows, plan is not None)
        return plan

    def _longer(self, view: BatchView, best: Choice) -> Plan | None:
        """Return drafts as long as good acceptance would make them; where no row drafts, for as
        many rows as the account can pay."""
        candidate, num = best.candidate, view.num_rows
        positions = np.arange(best.kept.shape[1])
        hope = view.weights[:, None] * GOOD_ACCEPTANCE ** (positions + 1)
        hope = np.maximum(candidate.worth, hope * (positions < candidate.caps[:, None]))
        hopeful = with_fields(candidate, worth=hope)
        _, kept = best_price(best.price, hopeful, best.costs, float(view.weights.sum()))
        kept = within_budget(kept, hope, view.draft_token_budget)
        if kept.sum() <= best.num:
            return None
        lag = np.where(kept.any(axis=1), candidate.lag, np.iinfo(np.int64).max)
        place = lag.argsort(kind="stable").argsort()
        prefill = self._draft_prefill.seconds(view, candidate, candidate.estimates.latency)
        while num:
            other = Choice(candidate, kept & (place < num)[:, None], best.costs, best.price)
            invested = float(prefill[other.kept.any(axis=1)].sum())
            if self._trials.account.pay(best.saved_seconds - other.saved_seconds + invested):
                return other.to_plan(reason=LONGER, settled=Settled(invested))
            num = 0 if best.num else num // 2
        return None

    def _judge(self, plan: Plan, outcome: Outcome, latency: Latency) -> float:
        """Compare a step with plain decoding. Return the seconds that its drafts saved."""
        view, seconds = outcome.view, outcome.seconds.total
        has_prefill = view.prefill_tokens > 0
        plain = alone = latency.off_seconds(view) + latency.host_seconds
        if not any(outcome.drafted.tolist()):
            self._guard.observe_plain(seconds, plain, has_prefill)
            return 0.0
        if has_prefill:
            alone = latency.off_seconds(view.without_prefill()) + latency.host_seconds
        plain += float(view.weights @ outcome.accepted) / float(view.weights.sum()) * alone
        invested = plan.settled.invested if plan.settled else 0.0
        return self._guard.compare(view.num_rows, seconds, plain, invested, has_prefill)
