"""The clock of an emulated GPU: steps run one after the other, in real time."""

import time
from concurrent.futures import Future

# seconds before the end in which a wait spins: sleeping overshoots by about so much
SLEEP_MARGIN = 150e-6


def wait_until(moment: float) -> None:
    """moment: of time.perf_counter()."""
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left - SLEEP_MARGIN if left > 2 * SLEEP_MARGIN else 0)


class ReadyAt(Future):
    """A value that is there from a moment on."""

    def __init__(self, value: object, moment: float):
        super().__init__()
        self._value, self._moment = value, moment

    def result(self, timeout: float | None = None) -> object:
        wait_until(self._moment)
        return self._value

    def done(self) -> bool:
        return time.perf_counter() >= self._moment


class Clock:
    """free: the moment at which all steps so far are done. busy, idle: seconds so far. Time in
    which no step is wanted counts as neither: rest() says that it begins.

    from_completion: a step begins where the last one ended, even if it was handed over later. That
    is how the plugin measures steps, so a profile of such times holds the host's work, too.
    """

    def __init__(self, from_completion: bool = False):
        self._from_completion = from_completion
        self.free = self.busy = self.idle = 0.0
        self._is_resting = True

    def run(self, seconds: float) -> float:
        """Hand over a step that takes so long; says when it begins."""
        now = time.perf_counter()
        if self._is_resting:
            start = now
        elif self._from_completion:
            start = self.free
        else:
            start = max(now, self.free)
            self.idle += start - self.free
        self._is_resting = False
        self.free = start + seconds
        self.busy += seconds
        return start

    def rest(self) -> None:
        self._is_resting = True
