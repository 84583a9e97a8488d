"""Which widths of drafts a step compares: each is a plan of its own, and the best changes as slowly as estimates do.

At a batch size all are compared in every COMPARED_EVERY-th step; the steps between take the width that was best then.
"""

from smartspec.control.goodput.exploration import NUM_SIZES, size_of

COMPARED_EVERY = 8  # steps: about as many as are learned from together


class Widths:
    """all_widths: those that there are to choose from."""

    def __init__(self, all_widths: tuple[int, ...]):
        self._all = all_widths
        self._best = [all_widths] * NUM_SIZES
        self._steps = [0] * NUM_SIZES

    def of_step(self, num_rows: int) -> tuple[int, ...]:
        """Those to compare in a step of so many decoding requests."""
        return self._all if self._steps[size_of(num_rows)] % COMPARED_EVERY == 0 else self._best[size_of(num_rows)]

    def chose(self, num_rows: int, width: int) -> None:
        """The step took this one."""
        self._best[size_of(num_rows)] = (width,)
        self._steps[size_of(num_rows)] += 1
