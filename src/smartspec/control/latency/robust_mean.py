"""A running mean that outliers hardly move but that follows a lasting change."""

RATE = 0.1  # about the last 10 values
DEVIATION_RATE = 0.2
MAX_DEVIATIONS = 3.0
MIN_DEVIATION = 0.05  # of the mean


class RobustMean:
    """Mean of the recent values; a value counts as at most MAX_DEVIATIONS mean absolute deviations away (Huber).

    The deviation follows what is seen, by steps as bounded, so it grows by 1.4 with every value of a lasting jump,
    which is believed after some twenty.
    """

    def __init__(self):
        self.mean = 0.0
        self._deviation = 0.0
        self._num_observed = 0

    def observe(self, value: float) -> None:
        """value: not negative."""
        self._num_observed += 1
        if self._num_observed == 1:
            self.mean, self._deviation = value, 0.25 * value
            return
        rate = max(RATE, 1.0 / self._num_observed)
        bound = MAX_DEVIATIONS * max(self._deviation, MIN_DEVIATION * self.mean, 1e-6)
        error = min(max(value - self.mean, -bound), bound)
        self.mean += rate * error
        self._deviation += DEVIATION_RATE * (abs(error) - self._deviation)
