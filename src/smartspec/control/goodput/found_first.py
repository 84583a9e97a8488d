"""Steps in which drafts that exist are enough: to consider drafts in passes takes the host as long as all the rest.

What drafts in passes gain follows from acceptance and the machine, which change slowly; what model-free drafters find
differs from step to step. So a step considers drafts in passes only if they were expected to gain more than what was
found and the host's time, when they were last planned for this batch size. They are planned anew every so many steps.
"""

from collections import Counter
from collections.abc import Callable

from smartspec.control.goodput.budget import size_of
from smartspec.control.goodput.prices import Choice


class FoundFirst:
    """spacing: steps at a batch size after which drafts in passes are planned anew at the latest."""

    def __init__(self, spacing: int):
        self._spacing = spacing
        self._gains: dict[int, float] = {}  # of drafts in passes, by batch size
        self._num_steps: Counter[int] = Counter()

    def choose(
        self,
        num_rows: int,
        passes_seconds: float,
        of_found: Callable[[], Choice],
        of_all: Callable[[], Choice],
    ) -> Choice:
        """The choice of a step of so many decoding requests. passes_seconds: that considering drafts in passes takes
        the host. of_found, of_all: the best choice of drafts that exist, and of all drafts."""
        size = size_of(num_rows)
        self._num_steps[size] += 1
        if size in self._gains and self._num_steps[size] % self._spacing:
            found = of_found()
            if found.plan.gain + passes_seconds / found.plan.off_seconds >= self._gains[size]:
                return found
        best = of_all()
        self._gains[size] = best.gain_of_passes or 0.0
        return best
