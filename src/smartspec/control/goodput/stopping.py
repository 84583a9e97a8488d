"""Ending drafts while they are made, by the draft model's confidence in the tokens so far.

Lengths are planned before there is a draft, so they are right on average. Each draft token comes with a confidence. A
draft of high confidence may become longer than planned, one of low confidence may end earlier. After every pass, the
rule chooses the rows whose next tokens are together worth most beyond their price. They go on if that is more than the
pass costs:

    sum_i w_i S_i a_i - value_of_time * (seconds of drafting and verifying so many more tokens)

S_i is the calibrated survival of the draft so far, a_i the expected acceptance of the next token, and value_of_time the
step's shadow price of time (see planner). That is one-step look-ahead. Survival only falls: a token that is not worth
its price now will not be later. Where tokens do not become cheaper either, no rule is better (Chow, Robbins and
Siegmund 1971, the monotone case). A draft that ends after a token it keeps changes no distribution.

Trees are drafted as planned: their shape follows confidence, and the next level of a tree is worth more than the next
token of a chain, by which the rule would end it.
"""

from math import isnan

import numpy as np

from smartspec.control.acceptance.calibration import grid_index
from smartspec.control.acceptance.logistic import log_odds_of
from smartspec.control.goodput.prices import Choice
from smartspec.control.policy import Estimates, length_caps
from smartspec.control.records import BatchView, Plan, with_fields

LEAST_SURVIVAL = 1e-9


def extend_by_confidence(view: BatchView, estimates: Estimates, best: Choice, weights: np.ndarray) -> Plan:
    """Return the best plan, of chains, with room for longer drafts that are made in passes, and a rule that ends them.

    weights: float [R], worth of another token of each row. Drafts stay as planned where their drafter never reported
    confidence: a host without confidence would not end them.
    """
    plan = best.draft_plan
    if estimates.acceptance is None:
        return plan
    has_confidence = estimates.acceptance.has_confidence
    confident = [drafter.has_passes and has_confidence(number) for number, drafter in enumerate(estimates.drafters)]
    if not any(confident):
        return plan
    is_stopped = np.array([*confident, False])[plan.drafter]
    if not is_stopped.any():
        return plan
    caps = np.where(is_stopped, length_caps(view, plan.drafter, estimates.max_draft_tokens), plan.lengths)
    lengths = _lengthen(plan.lengths, caps, view.draft_token_budget)
    pass_price = best.prices.time * best.pass_seconds
    token_price = best.prices.time * (best.token_seconds + best.row_seconds)
    rule = ConfidenceStop(estimates, np.where(is_stopped, plan.drafter, -1), weights, pass_price, token_price)
    return with_fields(plan, lengths=lengths, stop=rule)


class ConfidenceStop:
    """The rule of the steps of a plan. It keeps the survival of the drafts of the present step, for their cut.

    drafter: int [R], -1 where drafts are as long as planned. weights: float [R], worth of another token of each row.
    Prices are in tokens. pass_price: float [D, K], of a pass of each drafter at each depth, whichever rows take part.
    token_price: of drafting and verifying a token, besides that."""

    def __init__(
        self, estimates: Estimates, drafter: np.ndarray, weights: np.ndarray, pass_price: np.ndarray, token_price: float
    ):
        assert estimates.acceptance is not None, "without an estimator there is no confidence to stop by"
        # Positions first: one is needed at a time.
        survival = np.maximum(estimates.survival_of(drafter).T, LEAST_SURVIVAL)
        self._expected = np.concatenate([survival[:1], survival[1:] / survival[:-1]])
        history = log_odds_of(np.minimum(self._expected, 1.0 - LEAST_SURVIVAL))
        self._by_history, self._by_confidence = np.ones(history.shape), {}  # factors of the odds of acceptance
        for number in sorted({*drafter.tolist()} - {-1}):
            self._by_confidence[number], odds = estimates.acceptance.odds_given_confidence(number, history)
            self._by_history = np.where(drafter == number, odds, self._by_history)
        self._worth, self._numbers = weights * self._expected, drafter.tolist()
        self._pass_price, self._token_price = pass_price.tolist(), token_price
        self._survival = np.zeros(survival.shape)  # of the drafts of this step, 0 for tokens that were not made
        self._num_seen = np.zeros(len(weights), dtype=np.int64)  # tokens of each draft of this step

    def begin_step(self) -> None:
        """Forget the drafts of the step before."""
        self._survival.fill(0.0)
        self._num_seen.fill(0)

    def __call__(self, depth: int, rows: np.ndarray, confidence: np.ndarray, entropy: np.ndarray) -> np.ndarray:
        """Return True where a draft ends, see records.StopRule."""
        if (number := self._numbers[rows[0]]) < 0:
            return np.zeros(len(rows), dtype=bool)
        is_unknown = np.isnan(confidence) if isnan(confidence.dot(confidence)) else None
        known = confidence if is_unknown is None else np.where(is_unknown, 0.0, confidence)
        odds = self._by_confidence[number].take(grid_index(known), mode="clip") * self._by_history[depth][rows]
        survived = odds / (1.0 + odds)
        if is_unknown is not None:
            survived = np.where(is_unknown, self._expected[depth][rows], survived)
        if depth:
            survived *= self._survival[depth - 1][rows]
        self._survival[depth][rows] = survived
        self._num_seen[rows] = depth + 1
        if depth + 1 == len(self._worth):
            return np.ones(len(rows), dtype=bool)
        surplus = survived * self._worth[depth + 1][rows] - self._token_price
        goes_on = surplus > 0.0
        pays = surplus.dot(goes_on) > self._pass_price[number][depth + 1]
        return ~goes_on if pays else np.ones(len(rows), dtype=bool)

    def survival_of(self, lengths: np.ndarray) -> np.ndarray | None:
        """Return the survival of the drafts of this step: float [R, K], 0 where there is no token. None where the rule
        has not seen them all. lengths: int [R], of the drafts."""
        return self._survival.T if (self._num_seen >= lengths).all() else None


def _lengthen(lengths: np.ndarray, caps: np.ndarray, budget: int) -> np.ndarray:
    """Return the lengths of rows with drafts, raised to caps, or to the highest common limit whose sum is in the
    budget: int [R]."""
    caps = np.where(lengths > 0, np.maximum(caps, lengths), 0)
    if caps.sum() <= budget:
        return caps
    limits = np.arange(caps.max(initial=0) + 1)
    totals = np.maximum(np.minimum(caps[:, None], limits), lengths[:, None]).sum(axis=0)
    within = np.flatnonzero(totals <= budget)
    return lengths if not len(within) else np.maximum(np.minimum(caps, within[-1]), lengths)
