"""The calibration of a drafter's confidence: P(accepted | tested, confidence), learned online.

Reliability by bucket: each bucket of confidence keeps a fading estimate of its log-odds. The
estimate is shrunk towards a prior, halfway between the confidence itself and the usual acceptance
of the drafter. Isotonic regression then makes the buckets increase (Zadrozny and Elkan, KDD 2002).
Log-odds are interpolated between the midpoints of buckets. The other knowledge of a draft (its
request, class, position) shifts the result by half of

    log-odds predicted without confidence - their mean

It is a half only, because confidence itself tells easy requests from hard ones.
"""

import numpy as np

from smartspec.control.acceptance.logistic import (
    MAX_INFORMATION,
    log_odds_of,
    newton_terms,
    sigmoid,
)
from smartspec.control.acceptance.settings import ENTRY_STRENGTH, WORKLOAD_MEMORY

EDGES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99])
NUM_BUCKETS = len(EDGES) + 1
_BOUNDS = np.concatenate([[0.0], EDGES, [1.0]])
MIDPOINTS = 0.5 * (_BOUNDS[:-1] + _BOUNDS[1:])
_MIDPOINT_LOG_ODDS = log_odds_of(MIDPOINTS)
# Interpolated values are looked up: a stop rule needs some after every draft pass.
_LAST = 1024
_GRID = np.linspace(0.0, 1.0, _LAST + 1)


def grid_index(confidence: np.ndarray) -> np.ndarray:
    """Return where the values of these confidences (float in 0..1) stand in
    ConfidenceCalibration.curve: int."""
    return (confidence * _LAST).astype(np.intp)


class ConfidenceCalibration:
    """Learns and applies the calibration of one drafter. All arrays are flat, one entry per draft
    token."""

    def __init__(self) -> None:
        self.has_learned = False
        self._information = np.zeros(NUM_BUCKETS)
        self._score = np.zeros(NUM_BUCKETS)
        self._centre = 0.0
        self._estimate()

    @property
    def acceptance(self) -> np.ndarray:
        """The calibrated acceptance at the midpoints of the buckets: float [NUM_BUCKETS], never
        decreasing."""
        return sigmoid(self._values)

    def log_odds(self, confidence: np.ndarray, history: np.ndarray) -> np.ndarray:
        """Return the log-odds of acceptance: float [N]. confidence: float [N] in 0..1. history:
        float [N], the log-odds predicted without it."""
        return self.curve.take(grid_index(confidence), mode="clip") + self.shift(history)

    def shift(self, history: np.ndarray) -> np.ndarray:
        """Return what the rest of the knowledge of draft tokens adds to log-odds: float [N].
        history: see log_odds."""
        centre = self._centre if self.has_learned or not len(history) else float(history.mean())
        return 0.5 * (history - centre)

    def learn(
        self, confidence: np.ndarray, history: np.ndarray, accepted: np.ndarray, num_steps: int = 1
    ) -> None:
        """Learn from tested draft tokens of so many steps. accepted: float [N], 0 or 1. The rest as
        in log_odds()."""
        if not len(confidence):
            return
        fade = np.exp(-num_steps / WORKLOAD_MEMORY)
        known = float(self._information.sum()) * fade
        weight = known / (known + MAX_INFORMATION * len(history))
        self._centre = weight * self._centre + (1.0 - weight) * float(history.mean())
        self.has_learned = True
        buckets = EDGES.searchsorted(confidence)
        information, residual = newton_terms(
            sigmoid(self.log_odds(confidence, history)), 1.0, accepted
        )
        added = np.bincount(buckets, information, NUM_BUCKETS)
        self._information = self._information * fade + added
        self._score = (
            self._score * fade + np.bincount(buckets, residual, NUM_BUCKETS) + added * self._values
        )
        self._estimate()

    def table(self) -> dict:
        """Return, JSON-able, acceptance by confidence, and the rough number of fading observations
        that it rests on."""
        return {
            "confidence": MIDPOINTS.round(3).tolist(),
            "acceptance": self.acceptance.round(4).tolist(),
            "observations": (self._information / MAX_INFORMATION).round(1).tolist(),
        }

    def _estimate(self) -> None:
        prior = 0.5 * _MIDPOINT_LOG_ODDS + 0.5 * self._centre
        weights = self._information + ENTRY_STRENGTH
        self._values = isotonic((self._score + ENTRY_STRENGTH * prior) / weights, weights)
        # log-odds by confidence, where history is as usual
        self.curve = np.interp(_GRID, MIDPOINTS, self._values)


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the closest sequence that never decreases, in weighted least squares: float [N], for
    positive weights [N].

    By pooling adjacent violators (Robertson, Wright and Dykstra 1988, section 1.2), in Python: N is
    small.
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, entries
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, length = value, weight, 1
        while pools and pools[-1][0] > mean:
            other, other_weight, other_length = pools.pop()
            mean = (other * other_weight + mean * total) / (other_weight + total)
            total, length = total + other_weight, length + other_length
        pools.append((mean, total, length))
    return np.array([mean for mean, _, length in pools for _ in range(length)])
