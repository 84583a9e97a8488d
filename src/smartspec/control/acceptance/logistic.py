"""Log-odds, shared by everything that estimates a probability."""

import numpy as np

MAX_LOG_ODDS = 6.0
# Keeps Newton steps short where a probability is near 0 or 1; does not move their fixed point.
MIN_INFORMATION = 0.02
MAX_INFORMATION = 0.5 * 0.5  # of one test


def sigmoid(log_odds: np.ndarray | float) -> np.ndarray:
    """Return the probability of these log-odds, cut at +-MAX_LOG_ODDS."""
    return 1.0 / (1.0 + np.exp(-np.minimum(np.maximum(log_odds, -MAX_LOG_ODDS), MAX_LOG_ODDS)))


def log_odds_of(probability: np.ndarray | float) -> np.ndarray:
    """Return the inverse of sigmoid for probabilities strictly between 0 and 1."""
    return np.log(probability) - np.log1p(-probability)


def newton_terms(
    predicted: np.ndarray, tested: np.ndarray | float, accepted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the information n p (1 - p) and the residual y - n p of y accepted out of n tested,
    predicted as p.

    The residual is the gradient of the log-likelihood in log-odds, the information its expected
    curvature.
    """
    information = np.maximum(predicted * (1.0 - predicted), MIN_INFORMATION) * tested
    return information, accepted - predicted * tested
