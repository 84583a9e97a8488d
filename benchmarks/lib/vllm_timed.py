"""The time that a scheduler's calls of SmartSpec take. Works in vLLM's environment, too."""

from collections.abc import Callable

HOOKS = ("before_schedule", "after_schedule", "before_update", "after_update")
CONTROLLER = ("plan", "cut")
MEANWHILE = ("while_running",)


class Timed:
    """Adds up the seconds that methods take, by this clock. within: counts only calls from the
    methods that another one times."""

    def __init__(self, clock: Callable[[], float], within: "Timed | None" = None):
        self.seconds, self._clock, self._within, self._is_running = 0.0, clock, within, False

    def wrap(self, thing: object, names: tuple[str, ...]) -> None:
        for name in names:
            setattr(thing, name, self._timed(getattr(thing, name)))

    def _timed(self, method: Callable) -> Callable:
        def call(*arguments):
            if self._within is not None and not self._within._is_running:
                return method(*arguments)
            began, self._is_running = self._clock(), True
            try:
                return method(*arguments)
            finally:
                self.seconds += self._clock() - began
                self._is_running = False

        return call
