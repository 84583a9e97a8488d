"""Quantiles of Beta distributions of given mean, by table: numpy has no inverse of the Beta
distribution.

A Beta of mean m and concentration c has the parameters m c and (1 - m) c, and the variance m (1 -
m) / (c + 1). The table holds, for means on a grid, the average of the distribution in each of
NUM_BINS equally likely bins. Between two means of the grid the quantiles are interpolated, which
keeps the mean exact; within 1 / 128 of 0 and 1 that makes the variance too small.
"""

from functools import cache

import numpy as np

NUM_BINS = 256
NUM_MEANS = 129
_BIN_SHIFT = np.uint64(64 - 8)  # the top eight bits name one of the 256 bins


class BetaTable:
    """One distribution family per concentration; math.inf for no spread at all."""

    def __init__(self, concentrations: list[float]):
        for concentration in concentrations:
            if not concentration > 0:
                raise ValueError(
                    f"concentration is {concentration}: it must be positive (math.inf for no "
                    "spread)"
                )
        self.has_spread = not np.isinf(concentrations).all()
        self._quantiles = np.concatenate(
            [_quantiles(concentration) for concentration in concentrations]
        ).ravel()

    def draw(self, means: np.ndarray, families: np.ndarray, bits: np.ndarray) -> np.ndarray:
        """The quantiles that random bits (uint64) pick, of the Betas of these means (float in [0,
        1]) and of concentrations[families] (int): all three broadcast.
        """
        place = means * (NUM_MEANS - 1)
        below = np.minimum(place.astype(np.int64), NUM_MEANS - 2)
        index = (families * NUM_MEANS + below) * NUM_BINS + (bits >> _BIN_SHIFT).astype(np.int64)
        low = self._quantiles[index]
        return low + (place - below) * (self._quantiles[index + NUM_BINS] - low)


@cache
def _quantiles(concentration: float) -> np.ndarray:
    """float [NUM_MEANS, NUM_BINS], ascending along both axes."""
    means = np.linspace(0.0, 1.0, NUM_MEANS)
    if np.isinf(concentration):
        return np.repeat(means[:, None], NUM_BINS, axis=1)
    inner = [_bin_means(mean, concentration) for mean in means[1:-1]]
    return np.vstack([np.zeros(NUM_BINS), *inner, np.ones(NUM_BINS)])


def _bin_means(mean: float, concentration: float) -> np.ndarray:
    """Integrated over log-odds, where the density has no poles: it is x^a (1 - x)^b there."""
    log_odds = np.sinh(np.linspace(-10.0, 10.0, 6001))
    log_x, log_rest = -np.logaddexp(0.0, -log_odds), -np.logaddexp(0.0, log_odds)
    log_density = concentration * (mean * log_x + (1.0 - mean) * log_rest)
    density = np.exp(log_density - log_density.max())
    mass = _cumulative(density, log_odds)
    moment = _cumulative(density * np.exp(log_x), log_odds)
    edges = np.linspace(0.0, 1.0, NUM_BINS + 1)
    return np.clip(
        np.diff(np.interp(edges, mass / mass[-1], moment / moment[-1] * mean)) * NUM_BINS, 0.0, 1.0
    )


def _cumulative(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum((values[1:] + values[:-1]) / 2 * np.diff(at))])
