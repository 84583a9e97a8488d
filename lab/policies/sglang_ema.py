"""SGLang's adaptive number of draft steps: one more than what was lately accepted (its
documentation on adaptive speculative decoding;
python/sglang/srt/speculative/adaptive_spec_params.py)."""

from dataclasses import dataclass

from smartspec.control.estimates import Estimates
from smartspec.control.planning import plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Outcome, Plan

START_LENGTH = 3
WEIGHT = 0.2  # of the newest step in the moving average
UPDATE_INTERVAL = 5  # steps
WARMUP_STEPS = 10
DOWN_HYSTERESIS, UP_HYSTERESIS = -0.25, 0.0  # added to the thresholds


@dataclass
class Tracker:
    """State of one group of batch sizes. average: moving average of accepted tokens per drafting
    request."""

    length: int
    average: float
    num_steps: int = 0

    def update(self, mean_accepted: float, max_length: int) -> None:
        """Count a step, and every few steps move the length to round(average) + 1, sluggishly
        downwards."""
        self.average += WEIGHT * (mean_accepted - self.average)
        self.num_steps += 1
        steps_since_warmup = self.num_steps - WARMUP_STEPS
        if steps_since_warmup <= 0 or steps_since_warmup % UPDATE_INTERVAL:
            return
        while self.length > 1 and self.average <= self.length - 1.5 + DOWN_HYSTERESIS:
            self.length -= 1
        while self.length < max_length and self.average > self.length - 0.5 + UP_HYSTERESIS:
            self.length += 1


class SglangEma(Policy):
    """One length for the batch, max(1, round(average accepted length) + 1), an average per batch
    size up to a power of two.

    It depends on acceptance alone and never turns speculation off. Departure: SGLang picks from a
    few step counts that have captured graphs, from 0.5.23 on from others for larger batches, 0
    among them; here every count from 1 on is allowed for all batches.
    """

    def __init__(self):
        self._trackers: dict[int, Tracker] = {}
        self._max_length = START_LENGTH

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        self._max_length = estimates.max_draft_tokens
        return plan_of_lengths(view, estimates, self._tracker(view).length)

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        was_drafted = outcome.verified > 0
        if was_drafted.any():
            self._tracker(outcome.view).update(
                float(outcome.accepted[was_drafted].mean()), self._max_length
            )

    def _tracker(self, view: BatchView) -> Tracker:
        group = max(view.num_rows - 1, 0).bit_length()
        if group not in self._trackers:
            length = min(START_LENGTH, self._max_length)
            self._trackers[group] = Tracker(length, average=length - 1.0)
        return self._trackers[group]
