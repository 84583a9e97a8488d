"""TurboSpec, the later SmartSpec (arXiv 2406.14066v3): the batch level of the authors' second
prototype (vLLM V1, vllm/v1/spec_decode/auto_tuner.py of their fork)."""

from collections import deque

import numpy as np

from lab.policies.smartspec import REQUEST_INTERVAL, REQUEST_WINDOW, SmartSpecPaper
from smartspec.control.records import Outcome, Plan

START = 0.7


class TurboSpec(SmartSpecPaper):
    """One length for all requests, of most predicted tokens per second: acceptance averaged over
    the last 100 steps, a new decision every 200, no margin.

    Differences from the prototype are those of smartspec-paper. Left out too: its 5 % of a pass for
    overhead and the 4 % for n-gram drafts, as the host's time is measured here.
    """

    margin = 0.0

    def __init__(self, interval: int = REQUEST_INTERVAL):
        super().__init__(interval)
        self._recent: deque[tuple[int, int]] = deque(maxlen=REQUEST_WINDOW)

    @property
    def acceptance(self) -> float:
        if not self._recent:
            return START
        accepted, tested = np.sum(self._recent, axis=0)
        return float(accepted / tested)

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        if outcome.tested.any():
            self._recent.append((int(outcome.accepted.sum()), int(outcome.tested.sum())))
