"""Ratios of mean latencies of the same requests, with what chance does to them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NUM_DRAWS = 1000


@dataclass(frozen=True)
class Ratio:
    """A ratio and its 90 % bootstrap interval over requests."""

    value: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether the interval holds 1."""
        return self.low <= 1.0 <= self.high

    def text(self) -> str:
        """For a table."""
        return f"{self.value:.2f} ({self.low:.2f} - {self.high:.2f}){', noise' if self.is_noise else ''}"


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Mean of one over mean of the other; request i of both is the same. ValueError if they are not as many."""
    pairs = np.array([numerator, denominator], dtype=float)
    drawn = np.random.default_rng(0).integers(0, pairs.shape[1], size=(NUM_DRAWS, pairs.shape[1]))
    means = pairs[:, drawn].mean(axis=2)
    low, high = np.percentile(means[0] / means[1], [5, 95]).tolist()
    return Ratio(float(pairs[0].mean() / pairs[1].mean()), low, high)
