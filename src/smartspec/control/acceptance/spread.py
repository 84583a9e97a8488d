"""How much the requests of a class differ: the variance of their effects, learned from them (empirical Bayes).

A request that has collected information W has a score s of variance V around W times its effect (see
acceptance_effects). Effects scatter around the mean c of their class with variance v, so the square of s - W c is
(V + W^2 v) q on average, with q the part of that mean that is others', and every request yields an estimate of v. They
are averaged with weights (W / (W + 1 / v0))^2: a request of which little is known says little.

Why it matters: shrunk too little, requests of one kind are drafted for by noise; too much, those that differ are
all served like the mean.
"""

import numpy as np

START_VARIANCE = 0.5  # requests differ by about 0.7 in log-odds: 0.5 for one is 0.33 or 0.67 for others
START_REQUESTS = 2.0  # how many requests that guess is worth
# Never quite alike: when the workload changes, a class of which all is believed to be known would be slow to notice.
MIN_VARIANCE, MAX_VARIANCE = 0.1, 4.0
MEMORY = 100.0  # requests that have ended


class RequestSpread:
    """strength: 1 / v, information a request of a class has before anything is seen of it: float [D, 1], by
    drafter."""

    def __init__(self, num_drafters: int):
        self.strength = np.full((num_drafters, 1), 1.0 / START_VARIANCE)
        self._past = np.zeros((2, num_drafters))  # weighted estimates and weights of requests that have ended

    def learn(
        self, information: np.ndarray, deviation: np.ndarray, others_part: np.ndarray, variance: np.ndarray
    ) -> None:
        """From the requests as they stand: W, s - W c, q and V, all float [D, R]."""
        estimates, weights = self._past + _estimates(information, deviation, others_part, variance)
        spread = (START_REQUESTS * START_VARIANCE + estimates) / (START_REQUESTS + weights)
        self.strength = 1.0 / np.minimum(np.maximum(spread, MIN_VARIANCE), MAX_VARIANCE)[:, None]

    def remember(
        self, information: np.ndarray, deviation: np.ndarray, others_part: np.ndarray, variance: np.ndarray
    ) -> None:
        """Keep what a request that has ended says; as learn(), float [D, 1]."""
        found = _estimates(information, deviation, others_part, variance)
        self._past *= 1.0 - found[1] / MEMORY
        self._past += found


def _estimates(
    information: np.ndarray, deviation: np.ndarray, others_part: np.ndarray, variance: np.ndarray
) -> np.ndarray:
    """Sums over requests of the weighted estimates of v, and of the weights: float [2, D]."""
    scale = 1.0 / (information + 1.0 / START_VARIANCE) ** 2
    estimates = (deviation**2 - variance * others_part) * scale
    return np.stack([estimates.sum(axis=1), (information**2 * others_part * scale).sum(axis=1)])
