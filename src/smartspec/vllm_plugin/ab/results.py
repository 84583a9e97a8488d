"""Results of `--act`, by requests at a time: the ratio of speeds with speculation to without, and
its interval.

The estimate is the mean of the pairs' log ratios, weighted by the tokens of the smaller window. Its
interval, of 95 %, is that of Student's t around a weighted mean, with the degrees of freedom of the
effective number of pairs. The last MOST_PAIRS count.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from smartspec.vllm_plugin.ab.comparison import Pair
from smartspec.vllm_plugin.ab.windows import Side

ALL = "all"
LEAST_PAIRS = 5  # for an interval
CONFIDENCE = 0.95
MOST_PAIRS = 24 * 60  # of a minute each: a day has its busy and its quiet hours


@dataclass(frozen=True)
class Level:
    """Pairs with about as many requests at a time. interval: of the ratio; None while there are too
    few pairs."""

    pairs: int
    ratio: float
    interval: tuple[float, float] | None
    on: Side  # sums over the pairs
    off: Side

    @staticmethod
    def of(pairs: Sequence[Pair]) -> "Level":
        on, off = Side(), Side()
        for pair in pairs:
            on.add(pair.on)
            off.add(pair.off)
        logs = np.array([pair.log_ratio for pair in pairs])
        weights = np.array([min(pair.on.tokens, pair.off.tokens) for pair in pairs])
        total, mean = weights.sum(), np.average(logs, weights=weights)
        interval = None
        if len(pairs) >= LEAST_PAIRS:
            spread = ((weights * (logs - mean)) ** 2).sum()
            error = math.sqrt(spread * len(pairs) / (len(pairs) - 1)) / total
            effective = total**2 / (weights**2).sum()
            reach = error * t_quantile(max(effective - 1, 2.0))
            interval = math.exp(mean - reach), math.exp(mean + reach)
        return Level(len(pairs), math.exp(mean), interval, on, off)


class Results:
    """The last pairs of one server."""

    def __init__(self):
        self._pairs: deque[tuple[float, Pair]] = deque(maxlen=MOST_PAIRS)

    def add(self, pair: Pair) -> None:
        """Add a pair that ended now."""
        self._pairs.append((time.time(), pair))

    @property
    def levels(self) -> dict[str, Level]:
        """Levels by the least requests at a time, a power of two ("1", "2", "4", ...), and one of
        ALL."""
        found: dict[str, list[Pair]] = {}
        for _, pair in self._pairs:
            for name in (ALL, level_name(pair.off.requests)):
                found.setdefault(name, []).append(pair)
        return {name: Level.of(pairs) for name, pairs in found.items()}

    @property
    def since(self) -> float | None:
        """When the oldest pair ended, in seconds of the epoch; None without pairs."""
        return self._pairs[0][0] if self._pairs else None


def level_name(requests: float) -> str:
    """Return the name of the level of so many requests at a time, on the mean."""
    return str(2 ** int(math.log2(max(requests, 1.0))))


def t_quantile(freedom: float) -> float:
    """The quantile of Student's t at (1 + CONFIDENCE) / 2, within 4 % from 2 degrees of freedom on:
    Fisher's expansion around the normal quantile (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))
