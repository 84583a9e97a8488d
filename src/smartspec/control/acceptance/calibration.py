"""What a drafter's confidence is worth: P(accepted | tested, confidence), learned online.

Reliability by bucket: each bucket of confidence keeps fading evidence of its log-odds, shrunk towards a prior halfway
between the confidence itself and what the drafter usually reaches; isotonic regression then makes the buckets
increase (Zadrozny and Elkan, KDD 2002), and log-odds are interpolated between their midpoints. What else is known of
a draft (its request, class, position) shifts the result by

    slope * (log-odds predicted without confidence - their mean)

with a slope in [0, MAX_SLOPE] that is learned as well: a drafter whose confidence already tells easy requests from
hard ones leaves little for the history to add.
"""

import numpy as np

from smartspec.control.acceptance.logistic import log_odds_of, newton_evidence, sigmoid

EDGES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99])
NUM_BUCKETS = len(EDGES) + 1
_BOUNDS = np.concatenate([[0.0], EDGES, [1.0]])
MIDPOINTS = 0.5 * (_BOUNDS[:-1] + _BOUNDS[1:])
_MIDPOINT_LOG_ODDS = log_odds_of(MIDPOINTS)
PRIOR_TRUST = 0.5  # of the prior, the part that is the confidence; the rest is the drafter's mean
BUCKET_STRENGTH = 2.5  # information of ten observations
FADE = 1 - 1 / 1000  # per observation of a bucket
CENTRE_MEMORY = 1000.0  # observations behind the mean of the history's log-odds
PRIOR_SLOPE = 0.5
MAX_SLOPE = 2.0  # above 1: history, shrunk and blurred by unknown confidence, understates how requests differ
SLOPE_STRENGTH = 10.0
SLOPE_FADE = 1 - 1 / 5000  # per observation


class ConfidenceCalibration:
    """Learns and applies the calibration of one drafter. All arrays are flat, one entry per draft token."""

    def __init__(self):
        self.slope = PRIOR_SLOPE
        self._information = np.zeros(NUM_BUCKETS)
        self._score = np.zeros(NUM_BUCKETS)
        self._slope_information = 0.0
        self._slope_score = 0.0
        self._centre = 0.0
        self._centre_weight = 0.0
        self._values = self._estimate()

    @property
    def acceptance(self) -> np.ndarray:
        """Calibrated acceptance at the midpoints of the buckets: float [NUM_BUCKETS], never decreasing."""
        return sigmoid(self._values)

    @property
    def has_learned(self) -> bool:
        """Whether there was anything to learn from."""
        return self._centre_weight > 0

    def log_odds(self, confidence: np.ndarray, history: np.ndarray) -> np.ndarray:
        """Log-odds of acceptance. confidence: float [N] in 0..1; history: float [N], log-odds predicted without it."""
        return np.interp(confidence, MIDPOINTS, self._values) + self.slope * (history - self._mean_of(history))

    def learn(self, confidence: np.ndarray, history: np.ndarray, accepted: np.ndarray) -> None:
        """Learn from tested draft tokens; accepted: 0 or 1, float [N]; the rest as in log_odds()."""
        if not len(confidence):
            return
        self._learn_centre(history)
        buckets = EDGES.searchsorted(confidence)
        predicted = sigmoid(self.log_odds(confidence, history))
        information, residual = newton_evidence(predicted, 1.0, accepted)
        fade = FADE ** np.bincount(buckets, minlength=NUM_BUCKETS)
        bucket_information = np.bincount(buckets, information, NUM_BUCKETS)
        self._information = self._information * fade + bucket_information
        self._score = self._score * fade + np.bincount(buckets, residual, NUM_BUCKETS)
        self._score += bucket_information * self._values
        self._learn_slope(history - self._centre, information, residual)
        self._values = self._estimate()

    def table(self) -> dict:
        """JSON-able: acceptance by confidence, roughly how many fading observations are behind it, the slope."""
        return {
            "confidence": MIDPOINTS.round(3).tolist(),
            "acceptance": self.acceptance.round(4).tolist(),
            "observations": (self._information / 0.25).round(1).tolist(),
            "slope": round(float(self.slope), 3),
        }

    def _mean_of(self, history: np.ndarray) -> float:
        return self._centre if self._centre_weight or not len(history) else float(history.mean())

    def _learn_centre(self, history: np.ndarray) -> None:
        self._centre_weight = min(self._centre_weight, CENTRE_MEMORY) + len(history)
        self._centre += float((history - self._centre).sum()) / self._centre_weight

    def _learn_slope(self, shift: np.ndarray, information: np.ndarray, residual: np.ndarray) -> None:
        fade, curvature = SLOPE_FADE ** len(shift), float(information @ shift**2)
        self._slope_information = self._slope_information * fade + curvature
        self._slope_score = self._slope_score * fade + float(residual @ shift) + curvature * self.slope
        slope = (self._slope_score + SLOPE_STRENGTH * PRIOR_SLOPE) / (self._slope_information + SLOPE_STRENGTH)
        self.slope = min(max(slope, 0.0), MAX_SLOPE)

    def _estimate(self) -> np.ndarray:
        prior = PRIOR_TRUST * _MIDPOINT_LOG_ODDS + (1.0 - PRIOR_TRUST) * self._centre
        weights = self._information + BUCKET_STRENGTH
        return isotonic((self._score + BUCKET_STRENGTH * prior) / weights, weights)


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The closest sequence that never decreases, in weighted least squares: float [N], for positive weights [N].

    By pooling adjacent violators (Robertson, Wright and Dykstra 1988, section 1.2), in Python: N is small.
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
