"""How many tokens a request still generates: what the draft prefill of a request is paid back over.

One hazard rate for all: ends over tokens made, both fading. Requests that still run count with what they have made so
far, so short ones, which end first, do not bias it.
"""

import numpy as np

from smartspec.control.goodput.settings import DraftPrefillSettings
from smartspec.control.records import Outcome


class Lifetime:
    """Learns from every step and every request that ends."""

    def __init__(self, settings: DraftPrefillSettings):
        self._fade = 1.0 - 1.0 / settings.memory
        self._ended = settings.prior_requests
        self._made = settings.prior_requests * settings.prior_tokens
        self._request_ids = np.zeros(0, dtype=np.int64)  # of the last step

    @property
    def remaining_tokens(self) -> float:
        """Tokens that a request is expected to make yet, whatever it has made."""
        return self._made / self._ended

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished step."""
        self._request_ids = outcome.view.request_ids
        self._made += outcome.view.num_rows + float(outcome.accepted.sum())

    def request_ended(self, request_id: int) -> None:
        """Learn that a request is gone; one that was not decoding says nothing."""
        if (self._request_ids == request_id).any():
            self._made *= self._fade
            self._ended = self._ended * self._fade + 1.0
