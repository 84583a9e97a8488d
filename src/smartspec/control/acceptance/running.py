"""The survival of drafts while they are made, by the confidence of their tokens so far."""

from math import isnan

import numpy as np

from smartspec.control.acceptance.calibration import grid_index
from smartspec.control.acceptance.logistic import log_odds_of

LEAST_SURVIVAL = 1e-9


class RunningSurvival:
    """The survival of the drafts of a step, pass by pass. R rows, K the longest draft.

    survival: float [R, K], by what was known before drafting. drafter: int [R], -1 where a row is
    not followed. acceptance: the estimator, see policy.Acceptance."""

    def __init__(self, survival: np.ndarray, drafter: np.ndarray, acceptance):
        # Positions first: one is needed at a time.
        survival = np.maximum(survival.T, LEAST_SURVIVAL)
        # acceptance, float [K, R]
        self.expected = np.concatenate([survival[:1], survival[1:] / survival[:-1]])
        history = log_odds_of(np.minimum(self.expected, 1.0 - LEAST_SURVIVAL))
        # factors of the odds of acceptance
        self._by_history, self._by_confidence = np.ones(history.shape), {}
        for number in sorted({*drafter.tolist()} - {-1}):
            self._by_confidence[number], odds = acceptance.odds_given_confidence(number, history)
            self._by_history = np.where(drafter == number, odds, self._by_history)
        self._survival = np.zeros(survival.shape)  # 0 for tokens that were not made
        self._num_seen = np.zeros(survival.shape[1], dtype=np.int64)  # tokens of each draft

    def begin_step(self) -> None:
        """Forget the drafts of the step before."""
        self._survival.fill(0.0)
        self._num_seen.fill(0)

    def observe(
        self, number: int, depth: int, rows: np.ndarray, confidence: np.ndarray
    ) -> np.ndarray:
        """Return the survival of the tokens of a pass: float [n]. number: of their drafter. depth:
        of the pass, from 0. rows: int [n]. confidence: float [n], as in records.Drafted, NaN where
        there is none."""
        is_unknown = np.isnan(confidence) if isnan(confidence.dot(confidence)) else None
        known = confidence if is_unknown is None else np.where(is_unknown, 0.0, confidence)
        odds = (
            self._by_confidence[number].take(grid_index(known), mode="clip")
            * self._by_history[depth][rows]
        )
        survived = odds / (1.0 + odds)
        if is_unknown is not None:
            survived = np.where(is_unknown, self.expected[depth][rows], survived)
        if depth:
            survived *= self._survival[depth - 1][rows]
        self._survival[depth][rows] = survived
        self._num_seen[rows] = depth + 1
        return survived

    def of(self, lengths: np.ndarray) -> np.ndarray | None:
        """Return the survival of drafts of these lengths (int [R]): float [R, K], 0 where there is
        no token. None where not all of their tokens were observed."""
        return self._survival.T if (self._num_seen >= lengths).all() else None
