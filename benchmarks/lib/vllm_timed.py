"""The time that a scheduler's calls of SmartSpec take. Works in vLLM's environment, too."""

from collections.abc import Callable

HOOKS = ("before_schedule", "after_schedule", "before_update", "after_update")
CONTROLLER = ("plan", "cut")
MEANWHILE = ("while_running",)


class Timed:
    """Adds up the seconds that methods take, by this clock."""

    def __init__(self, clock: Callable[[], float]):
        self.seconds, self._clock = 0.0, clock

    def wrap(self, thing: object, names: tuple[str, ...]) -> None:
        for name in names:
            setattr(thing, name, self._timed(getattr(thing, name)))

    def _timed(self, method: Callable) -> Callable:
        def call(*arguments):
            began = self._clock()
            try:
                return method(*arguments)
            finally:
                self.seconds += self._clock() - began

        return call
