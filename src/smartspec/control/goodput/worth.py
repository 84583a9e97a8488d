"""Which draft tokens are worth their time.

A second of step time has a price, in tokens (see price). A draft token is kept where it brings more
than it costs:

    weight * survival > price * seconds

Survival is the probability that the token and all before it are accepted. It never increases along
a draft, so the kept tokens of a row are a prefix of its draft. A pass of a drafter serves a token
of many rows: it is made where these tokens together bring more than the pass costs. At the price
that equals the goodput of the result, the result is the plan of largest goodput (Dinkelbach 1967,
On Nonlinear Fractional Programming).

The same inequality ends a draft while it is made (ConfidenceStop) and cuts it before it is verified
(lengths_to_verify). Both are lossless. A sampled draft token keeps the target's distribution only
if the decision to keep it is made before it is drawn. What is known then is the confidence of its
own distribution and of those before it, and prices that were settled before drafting. Nothing else
enters: not the later tokens of its draft, nor the final length, since both depend on which token
was drawn. So a best cut of finished drafts would be biased, and this one is not.
"""

from dataclasses import dataclass

import numpy as np

from smartspec.control.acceptance.running import RunningSurvival
from smartspec.control.estimates import Estimates


@dataclass(frozen=True)
class Costs:
    """Seconds of a step: without drafts, of one more verified token, of the draft pass at each
    depth (float [K])."""

    plain: float
    token: float
    passes: np.ndarray

    def of_drafts(self, kept: np.ndarray, depths: np.ndarray | None) -> float:
        """Return the seconds that the kept tokens (bool [R, K]) add to the step. depths: int [R,
        K], passes that each token takes, None where all drafts exist."""
        seconds = self.token * int(np.count_nonzero(kept))
        if depths is None:
            return seconds
        return seconds + float(self.passes[: int((depths * kept).max(initial=0))].sum())


def kept_tokens(
    price: float, worth: np.ndarray, depths: np.ndarray | None, costs: Costs
) -> np.ndarray:
    """Return the tokens that are worth their time at a price: bool [R, K].

    price: tokens per second. worth: float [R, K], weight times survival, 0 for tokens that a draft
    cannot have. depths: int [R, K], the passes that each takes, 0 where the draft exists; None
    where all do."""
    if depths is None:
        return worth > price * costs.token
    surplus = np.maximum(worth - price * costs.token, 0.0)
    num_passes = len(costs.passes)
    of_depths = np.bincount(depths.ravel(), surplus.ravel(), minlength=num_passes + 1)[1:]
    totals = np.append(0.0, (of_depths - price * costs.passes).cumsum())
    return (surplus > 0.0) & (depths <= totals.argmax())


def lengths_to_verify(gains: np.ndarray, lengths: np.ndarray, price: float) -> np.ndarray:
    """Return the number of tokens of each draft to keep: int [R], at most lengths.

    gains: float [R, K], expected (weighted) tokens that each draft token brings, never increasing
    along a row. Element j must depend on nothing that is known only once the token at j is drawn.
    lengths: int [R], of the drafts. price: of a token, in the same unit, settled before drafting.
    """
    return np.minimum((gains > price).sum(axis=1), lengths)


class ConfidenceStop:
    """Ends drafts while they are made, by the drafter's confidence in the tokens so far (see
    records.StopRule).

    After a pass a row goes on if its next token is expected to be worth its time, and all rows that
    go on together must be worth the next pass. Survival only falls, so a token that is not worth
    its time now will not be later: to look one step ahead is optimal where tokens do not become
    cheaper (Chow, Robbins and Siegmund 1971, the monotone case).

    drafter: int [R], -1 where drafts are as long as planned. weights: float [R], worth of another
    token. pass_price: float [K], tokens, of the draft pass at each depth. token_price: tokens, of
    verifying one."""

    def __init__(
        self,
        estimates: Estimates,
        drafter: np.ndarray,
        weights: np.ndarray,
        pass_price: np.ndarray,
        token_price: float,
    ):
        survival = estimates.survival_of(drafter)
        self.survival = RunningSurvival(survival, drafter, estimates.acceptance)
        self.weights, self.token_price = weights, token_price
        self._worth, self._numbers = weights * self.survival.expected, drafter.tolist()
        self._pass_price = pass_price.tolist()

    def __call__(
        self, depth: int, rows: np.ndarray, confidence: np.ndarray, entropy: np.ndarray
    ) -> np.ndarray:
        """Return True where a draft ends: bool [n], see records.StopRule."""
        number = self._numbers[rows[0]]
        if number < 0:
            return np.zeros(len(rows), dtype=bool)
        survived = self.survival.observe(number, depth, rows, confidence)
        if depth + 1 == len(self._worth):
            return np.ones(len(rows), dtype=bool)
        surplus = survived * self._worth[depth + 1][rows] - self.token_price
        goes_on = surplus > 0.0
        pays = surplus.dot(goes_on) > self._pass_price[depth + 1]
        return ~goes_on if pays else np.ones(len(rows), dtype=bool)
