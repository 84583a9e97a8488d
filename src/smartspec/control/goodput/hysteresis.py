"""What it costs to change the draft length of a whole step, and who pays.

An engine with captured graphs may take longer for the step behind a change: with a table by batch size, 232 tokens per
second fell to 24 to 157 where it crosses its threshold (vLLM issue 49548).
"""

import numpy as np

from smartspec.control.goodput.settings import HysteresisSettings


class Hysteresis:
    """Learns what changes cost from steps that were chosen. A length that differs from the last one is charged that,
    divided by the steps that a length has lasted lately: where lengths change often, changing must gain more."""

    def __init__(self, settings: HysteresisSettings):
        self._settings = settings
        self._last: int | None = None
        self._num_steps = 0  # since the last change
        self._seconds = 0.0
        self._lasting = settings.first_lasting

    def charges(self, lengths: np.ndarray) -> np.ndarray:
        """Seconds that a step with each of these lengths (int [n]) is charged: float [n]."""
        if self._last is None:
            return np.zeros(len(lengths))
        return np.where(lengths == self._last, 0.0, max(self._seconds, 0.0) / self._lasting)

    def observe(self, length: int, excess_seconds: float | None) -> None:
        """A step is over. excess_seconds: by how much longer it took than was predicted, None where that tells nothing
        (prefill)."""
        if self._last is not None and length != self._last:
            rate = self._settings.rate
            if excess_seconds is not None:
                self._seconds += rate * (excess_seconds - self._seconds)
            self._lasting += rate * (self._num_steps - self._lasting)
            self._num_steps = 0
        self._last = length
        self._num_steps += 1
