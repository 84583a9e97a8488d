"""The guard: whatever the models believe, speculation that measures slower than plain decoding is switched off.

The planner trusts predicted seconds and acceptance. Should both be wrong together (a cost model that understates what
a draft token costs explains slow steps by a slow machine, and then expects non-speculative steps to be slow as well),
it would go on losing. The guard compares sums of *measured* values: what speculative steps emitted, against what plain
decoding would have emitted in the same time, the latter from non-speculative steps measured lately. These exist because
a small share of step time is set aside for them (see exploration).
"""

from smartspec.control.goodput.settings import GuardSettings
from smartspec.control.latency.robust_mean import RobustMean


class Guard:
    """Watches measured goodput. reason: why drafts are off at present, None while they are allowed."""

    def __init__(self, settings: GuardSettings):
        self.reason: str | None = None
        self.num_trips = 0
        self._settings = settings
        self._fade = 1.0 - 1.0 / settings.memory
        self._sums = [0.0] * 4  # steps, emitted, what plain decoding would have, squared differences
        # Measured over predicted time of non-speculative steps, without and with prefill in them.
        self._off_ratio = RobustMean(), RobustMean()
        self._pause = settings.memory // 2
        self._remaining = 0

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
        if off_tokens == 0 or off_seconds <= 0 or not self._settings.is_on:
            return
        ratio = self._off_ratio[has_prefill]
        if not speculated:
            ratio.observe(seconds / off_seconds)
            self._end_pause()
            return
        correction = ratio.mean or 1.0
        without_drafts = off_tokens + value_of_time / correction * (seconds - off_seconds * correction)
        seen = 1.0, emitted, without_drafts, (emitted - without_drafts) ** 2
        self._sums = [self._fade * total + value for total, value in zip(self._sums, seen, strict=True)]
        if self._convicts():
            self._trip()

    def _end_pause(self) -> None:
        if self._remaining:
            self._remaining -= 1
            if not self._remaining:
                self.reason = None

    def _convicts(self) -> bool:
        steps, emitted, without_drafts, squared = self._sums
        if steps < self._settings.memory / 3 or not any(ratio.mean for ratio in self._off_ratio):
            return False
        lead = without_drafts - emitted
        spread = max(squared - lead * lead / steps, 0.0)
        return lead > self._settings.tolerance * without_drafts and lead > self._settings.significance * spread**0.5

    def _trip(self) -> None:
        steps, emitted, without_drafts, _ = self._sums
        self.reason = (
            f"over the last {steps:.0f} speculative steps measured goodput was {1.0 - emitted / without_drafts:.1%} "
            f"below that of plain decoding: no drafts for {self._pause} steps"
        )
        self.num_trips += 1
        self._remaining = self._pause
        self._pause = min(2 * self._pause, 16 * self._settings.memory)
        self._sums = [0.0] * 4
