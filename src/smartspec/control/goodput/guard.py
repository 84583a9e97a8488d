"""The guard: whatever the models believe, speculation that measures slower than plain decoding is switched off.

The planner trusts predicted seconds and acceptance. Should both be wrong together (a cost model that understates what
a draft token costs explains slow steps by a slow machine, and then expects non-speculative steps to be slow as well),
it would go on losing. The guard compares sums of *measured* values: what speculative steps emitted, against what plain
decoding would have emitted in the same time, the latter from non-speculative steps measured lately. These exist because
a small share of step time is set aside for them (see exploration).
"""

from dataclasses import dataclass

import numpy as np

FADE = 1 - 1 / 64  # per step: about the last 64 steps count
MIN_STEPS = 24  # fewer say nothing
TOLERANCE = 0.02  # loss below this is noise of the comparison
SIGNIFICANCE = 2.0  # standard errors by which plain decoding must lead
FIRST_PAUSE = 32  # non-speculative steps after a trip; doubles with every further one
LONGEST_PAUSE = 1024
FORGIVE_FACTOR = 8  # this many pauses' worth of speculative steps without a trip, and the pause is short again
MAX_LOG_ERROR = 0.5  # in log seconds, of one non-speculative step: beyond it is an outlier
MAX_STEPS_SINCE_OFF = 512  # steps after which a comparison with non-speculative ones is too old to convict


@dataclass
class _Sums:
    """Fading sums over speculative steps."""

    steps: float = 0.0
    emitted: float = 0.0
    off_equivalent: float = 0.0
    squared_difference: float = 0.0

    def fade(self) -> None:
        for name in ("steps", "emitted", "off_equivalent", "squared_difference"):
            setattr(self, name, getattr(self, name) * FADE)


class Guard:
    """Watches measured goodput. reason: why drafts are off at present, None while they are allowed."""

    def __init__(self):
        self.reason: str | None = None
        self.num_trips = 0
        self._sums = _Sums()
        self._log_off_error = [0.0, 0.0]  # of off_seconds, without and with prefill in the step
        self._num_off = [0, 0]
        self._steps_since_off = 0
        self._pause = FIRST_PAUSE
        self._remaining = 0
        self._steps_since_trip = 0

    @property
    def allows_drafts(self) -> bool:
        return self._remaining == 0

    def observe(
        self,
        off_tokens: float,
        emitted: float,
        seconds: float,
        off_seconds: float,
        value_of_time: float,
        speculated: bool,
        has_prefill: bool = False,
    ) -> None:
        """One step: what its requests emit without drafts and what they did emit (weighted tokens), how long it took,
        how long it was predicted to take without drafts (off_seconds), and the weighted tokens per second they are
        predicted to emit in non-speculative steps of their own (value_of_time; a mixed step takes long for reasons that
        have nothing to do with drafts)."""
        if off_tokens == 0 or off_seconds <= 0:
            return
        self._steps_since_off += 1
        if not speculated:
            self._learn_off(int(has_prefill), float(np.log(seconds / off_seconds)))
            return
        self._steps_since_trip += 1
        if self._steps_since_trip > FORGIVE_FACTOR * self._pause:
            self._pause = FIRST_PAUSE
        self._sums.fade()
        correction = float(np.exp(self._log_off_error[int(has_prefill)]))
        without_drafts = off_tokens + value_of_time / correction * (seconds - off_seconds * correction)
        self._sums.steps += 1.0
        self._sums.emitted += emitted
        self._sums.off_equivalent += without_drafts
        self._sums.squared_difference += (emitted - without_drafts) ** 2
        if self._convicts():
            self._trip()

    def _learn_off(self, regime: int, log_error: float) -> None:
        self._num_off[regime] += 1
        rate = max(1 / 8, 1 / self._num_off[regime])
        bound = MAX_LOG_ERROR if self._num_off[regime] > 1 else np.inf
        self._log_off_error[regime] += rate * float(np.clip(log_error - self._log_off_error[regime], -bound, bound))
        self._steps_since_off = 0
        if self._remaining:
            self._remaining -= 1
            if not self._remaining:
                self.reason = None

    def _convicts(self) -> bool:
        sums = self._sums
        if sums.steps < MIN_STEPS or not any(self._num_off) or self._steps_since_off > MAX_STEPS_SINCE_OFF:
            return False
        lead = sums.off_equivalent - sums.emitted
        spread = max(sums.squared_difference - lead * lead / sums.steps, 0.0)
        return lead > TOLERANCE * sums.off_equivalent and lead > SIGNIFICANCE * np.sqrt(spread)

    def _trip(self) -> None:
        sums = self._sums
        loss = 1.0 - sums.emitted / sums.off_equivalent
        self.reason = (
            f"over the last {sums.steps:.0f} speculative steps measured goodput was {loss:.1%} below that of plain "
            f"decoding: no drafts for {self._pause} steps"
        )
        self.num_trips += 1
        self._remaining = self._pause
        self._steps_since_trip = 0
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._sums = _Sums()
