"""The duration of steps, as far as the host can tell.

SGLang calls its policy before it launches a decode step, and when the accepted lengths of a step
are on the host. Its overlapped scheduler launches a step before it waits for the one that runs:

    launch 1, launch 2, end 1, launch 3, end 2, ...      overlapped
    launch 1, end 1, launch 2, end 2, ...                not overlapped

In both a step begins when the work before it has ended, or when it is launched, if that is later.
Prefill is such work. Its end is told by a hook; without it, steps that are launched beside prefill
have no time.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

MAX_UNDER_WAY = 2  # steps


@dataclass(frozen=True)
class Launched:
    """A decode step."""

    batch_size: int
    steps: int
    at: float  # seconds
    is_queued: bool  # whether the step before it was still under way
    decision: Any = None  # of the host


class Timeline:
    """The steps under way, oldest first."""

    def __init__(self):
        self._under_way: deque[Launched] = deque(maxlen=MAX_UNDER_WAY)
        self._last_end = float("-inf")
        self._knows_prefill = False

    def launch(self, batch_size: int, steps: int, now: float, decision: Any = None) -> None:
        """A decode step is about to be launched."""
        self._under_way.append(Launched(batch_size, steps, now, bool(self._under_way), decision))

    def end_prefill(self, now: float) -> None:
        """Prefill has ended."""
        self._last_end, self._knows_prefill = now, True

    def end(self, batch_size: int, now: float) -> tuple[Launched, float | None] | None:
        """The step that is over, and its seconds, None if unknown. None where it is none of these,
        which are then forgotten."""
        if not self._under_way or self._under_way[0].batch_size != batch_size:
            self._under_way.clear()
            return None
        step = self._under_way.popleft()
        may_follow_prefill = (
            bool(self._under_way) and not step.is_queued and not self._knows_prefill
        )
        began, self._last_end = max(self._last_end, step.at), now
        return step, None if may_follow_prefill else max(now - began, 1e-9)
