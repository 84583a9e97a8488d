"""A running mean that outliers hardly move but that follows a lasting change."""

from smartspec.control.latency.settings import HOST_RATE, MAX_DEVIATIONS

MIN_DEVIATION = 0.05  # of the mean


class RobustMean:
    """The mean of the recent values. A value counts as at most max_deviations mean absolute
    deviations from the mean (Huber), as for passes (see cost_correction).

    The deviation follows the values, by bounded steps. It grows by a factor of 1.15 with every
    value of a lasting jump, so the mean follows such a jump after some twenty values.
    """

    def __init__(self) -> None:
        self.mean = 0.0
        self._deviation = 0.0
        self._num_observed = 0

    def observe(self, value: float) -> None:
        """Learn from a value, which is not negative."""
        self._num_observed += 1
        if self._num_observed == 1:
            self.mean, self._deviation = value, 0.5 * value
            return
        rate = max(HOST_RATE, 1.0 / self._num_observed)
        bound = MAX_DEVIATIONS * max(self._deviation, MIN_DEVIATION * self.mean, 1e-6)
        error = min(max(value - self.mean, -bound), bound)
        self.mean += rate * error
        self._deviation += rate * (abs(error) - self._deviation)
