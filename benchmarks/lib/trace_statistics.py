"""Latencies of runs that met the same windows, compared: ratios with bootstrap intervals over
windows and requests."""

from dataclasses import dataclass

import numpy as np

LOW, HIGH = 5, 95  # percentiles: a 90 % interval
NUM_DRAWS = 1000
STATISTICS = {
    "mean": lambda latencies: latencies.mean(axis=-1),
    "p50": lambda latencies: np.percentile(latencies, 50, axis=-1),
    "p99": lambda latencies: np.percentile(latencies, 99, axis=-1),
}
Windows = list[list[float]]  # latency in seconds by window and request


@dataclass(frozen=True)
class Ratios:
    """Of one run's latency to another's, by statistic: as measured, and of every bootstrap draw,
    float [NUM_DRAWS]."""

    measured: dict[str, float]
    drawn: dict[str, np.ndarray]

    def summary(self) -> dict[str, list[float]]:
        """By statistic the change in percent, and the ends of its interval."""
        return {
            name: [
                round(100 * (float(ratio) - 1), 2)
                for ratio in (value, *np.percentile(self.drawn[name], (LOW, HIGH)))
            ]
            for name, value in self.measured.items()
        }


def compared(latencies: Windows, reference: Windows, seed: int = 0) -> Ratios:
    """A draw takes as many windows as there are, and of each as many requests as it has, with
    replacement, the same of both runs."""
    rng = np.random.default_rng(seed)
    # of each window [2, N]
    pairs = [np.array(pair) for pair in zip(latencies, reference, strict=True)]
    measured = _ratios(np.concatenate(pairs, axis=1))
    draws = []
    for _ in range(NUM_DRAWS):
        windows = [pairs[number] for number in rng.integers(len(pairs), size=len(pairs))]
        requests = [pair[:, rng.integers(pair.shape[1], size=pair.shape[1])] for pair in windows]
        draws.append(_ratios(np.concatenate(requests, axis=1)))
    return Ratios(measured, {name: np.array([draw[name] for draw in draws]) for name in measured})


def pooled(parts: list[Ratios]) -> Ratios:
    """Geometric means over cases, every case drawn by itself."""
    return Ratios(
        {
            name: float(np.exp(np.mean([np.log(part.measured[name]) for part in parts])))
            for name in STATISTICS
        },
        {
            name: np.exp(np.mean([np.log(part.drawn[name]) for part in parts], axis=0))
            for name in STATISTICS
        },
    )


def summary(latencies: Windows) -> dict[str, float]:
    """Mean, p50 and p99 in seconds of all requests of all windows."""
    together = np.concatenate(latencies)
    return {name: round(float(statistic(together)), 4) for name, statistic in STATISTICS.items()}


def _ratios(pair: np.ndarray) -> dict[str, float]:
    """pair: latencies of both runs, float [2, N]."""
    of = {name: statistic(pair) for name, statistic in STATISTICS.items()}
    return {name: float(values[0] / values[1]) for name, values in of.items()}
