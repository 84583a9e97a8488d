"""Acceptance by drafter pool and draft position: the slow part of the estimate, shared by all requests.

A pool is an evidence class of the offers (whose text they are from and how long the match is) or the draft model. Its
log-odds at a position are shrunk in two steps, from what is known of all evidence classes to those of the pool at
neighbouring positions to the cell itself, so cold cells borrow from warm ones:

    estimate = (sum of scores + strength * prior) / (sum of information + strength)

where a Newton step per observation turns outcome y, predicted as p, into information w = p (1 - p) and score
w * estimate + (y - p), both fading. That is the extended Kalman (Laplace) update of logistic regression under a
Gaussian prior of variance 1 / strength.
"""

import numpy as np

from smartspec.control.acceptance.logistic import MAX_LOG_ODDS, log_odds_of, sigmoid
from smartspec.control.records import OTHER_TEXT

# By length of the match in the request's own text, and in those of others.
OFFER_POOLS = (
    *(f"match {n}" for n in ("0-1", "2", "3", "4-5", "6-8", "9+")),
    *(f"others' {n}" for n in ("1", "2", "3+")),
)
_POOL_OF_EVIDENCE = np.array([0, 0, 1, 2, 3, 3, 4, 4, 4] + [5] * (OTHER_TEXT - 8) + [6, 7, 8])
MODEL_POOL = len(OFFER_POOLS)
NUM_POOLS = MODEL_POOL + 1

# An untested drafter is believed to be right a little more often than not: a try costs little, never trying costs the
# whole gain.
PRIOR_LOG_ODDS = float(log_odds_of(0.6))
SHARED_STRENGTH = 1.0  # information of four observations: the first evidence overrides it
# Neighbours weigh more, ten observations: bad luck at a position few drafts reach must not keep all drafts short of it.
CELL_STRENGTH = 2.5
NEIGHBOUR_DECAY = 0.6  # weight of the evidence of a neighbouring position, per position of distance
CELL_FADE = 1 - 1 / 1000  # per observation of the cell
# Evidence ages even where none arrives, so a drafter that was written off is tried again after a few thousand steps.
IDLE_FADE = 1 - 1 / 500  # per step
_POOL_COLUMNS = np.eye(NUM_POOLS)


def pools_of(use_model: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """Pool of each row: int [R]. use_model: bool [R]; evidence: int [R], strength of the offer."""
    return np.where(use_model, MODEL_POOL, _POOL_OF_EVIDENCE.take(evidence, mode="clip"))


class AcceptanceCells:
    """Log-odds of acceptance, float [K, pools], given that all draft tokens before were accepted."""

    def __init__(self, num_positions: int):
        shape = (num_positions, NUM_POOLS)
        self.log_odds = np.full(shape, PRIOR_LOG_ODDS)
        self._information = np.zeros(shape)
        self._score = np.zeros(shape)
        positions = np.arange(num_positions)
        self._nearness = NEIGHBOUR_DECAY ** np.abs(positions[:, None] - positions)

    def of(self, pools: np.ndarray) -> np.ndarray:
        """Log-odds of rows in these pools: float [K, R]."""
        return self.log_odds.take(pools, axis=1)

    def first_position_variance(self, pools: np.ndarray) -> np.ndarray:
        """Variance of the log-odds of the first position: float [R]. Grows as evidence ages."""
        variance = 1.0 / (self._information[0] + SHARED_STRENGTH)
        return variance.take(pools)

    def learn(self, pools: np.ndarray, tested: np.ndarray, information: np.ndarray, residual: np.ndarray) -> np.ndarray:
        """Add the evidence of rows in these pools, all float [K, R]; returns how far the cells moved: [K, pools]."""
        num_positions = len(self.log_odds)
        by_pool = np.concatenate([tested, information, residual]) @ _POOL_COLUMNS.take(pools, axis=0)
        tested, information, residual = by_pool.reshape(3, num_positions, NUM_POOLS)
        fade = CELL_FADE**tested
        self._information = self._information * fade + information
        self._score = self._score * fade + residual + information * self.log_odds
        before, self.log_odds = self.log_odds, self._estimate()
        return self.log_odds - before

    def age(self) -> None:
        """One step has passed."""
        self._information *= IDLE_FADE
        self._score *= IDLE_FADE

    def table(self) -> dict:
        """Conditional acceptance by pool and position, roughly how many observations are behind it, and the standard
        deviation of its log-odds."""
        std = 1.0 / np.sqrt(self._information + SHARED_STRENGTH)
        columns = {"acceptance": (sigmoid(self.log_odds), 4), "observations": (self._information / 0.25, 1)}
        columns["log_odds_std"] = (std, 3)
        return {
            name: {column: values[:, pool].round(digits).tolist() for column, (values, digits) in columns.items()}
            for pool, name in enumerate((*OFFER_POOLS, "model"))
        }

    def _estimate(self) -> np.ndarray:
        near = self._nearness @ np.concatenate([self._information, self._score], axis=1)
        near_information, near_score = near[:, :NUM_POOLS], near[:, NUM_POOLS:]
        shared_information, shared_score = near_information.copy(), near_score.copy()
        shared_information[:, :MODEL_POOL] = near_information[:, :MODEL_POOL].sum(axis=1, keepdims=True)
        shared_score[:, :MODEL_POOL] = near_score[:, :MODEL_POOL].sum(axis=1, keepdims=True)
        estimate = (shared_score + SHARED_STRENGTH * PRIOR_LOG_ODDS) / (shared_information + SHARED_STRENGTH)
        estimate = (near_score + SHARED_STRENGTH * estimate) / (near_information + SHARED_STRENGTH)
        estimate = (self._score + CELL_STRENGTH * estimate) / (self._information + CELL_STRENGTH)
        return np.minimum(np.maximum(estimate, -MAX_LOG_ODDS), MAX_LOG_ODDS)
