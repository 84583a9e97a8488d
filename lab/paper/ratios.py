"""Ratios of mean latencies over seeds, with their spread."""

from collections.abc import Sequence
from dataclasses import dataclass

SPREAD = "In brackets: the least and the largest of the seeds; noise: 1 lies between them."


@dataclass(frozen=True)
class Ratio:
    """Of all seeds together; low, high: the least and the largest of single ones."""

    value: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether seeds disagree on which of both is larger."""
        return self.low <= 1.0 <= self.high

    def text(self) -> str:
        """For a table. One seed has no spread."""
        if self.low == self.high:
            return f"{self.value:.2f}"
        return (
            f"{self.value:.2f} ({self.low:.2f} - "
            f"{self.high:.2f}){', noise' if self.is_noise else ''}"
        )


def ratio_of_seeds(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Sum of one over sum of the other. Entry i of both is the mean latency of the same requests,
    those of a seed. ValueError if they are not as many."""
    ratios = [above / below for above, below in zip(numerator, denominator, strict=True)]
    return Ratio(sum(numerator) / sum(denominator), min(ratios), max(ratios))
