"""The runs of a matrix that a folder lacks, one after the other, with progress and the time that is
left."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from smartspec.report.folder import Folder, Measured
from smartspec.report.matrix import Matrix, Run

MAX_FAILURES = 3  # in a row, after which a variant is not tried any more
Clock = Callable[[], float]


@dataclass(frozen=True)
class Outcome:
    """The end of the measurements."""

    is_interrupted: bool = False
    is_out_of_time: bool = False
    given_up: tuple[str, ...] = ()  # variants with too many failures in a row


class Durations:
    """Seconds that runs took, and what others will take."""

    def __init__(self):
        self._by_name: dict[str, list[float]] = defaultdict(list)

    def add(self, run: Run, seconds: float) -> None:
        for name in self._names(run):
            self._by_name[name].append(seconds)

    def expected(self, runs: list[Run]) -> float | None:
        """Seconds of all these runs: as runs of their cell took, else of their load, else as all;
        None before any."""
        if not self._by_name:
            return None
        known = (
            next(self._by_name[name] for name in self._names(run) if name in self._by_name)
            for run in runs
        )
        return sum(map(fmean, known))

    def _names(self, run: Run) -> tuple[str, str, str]:
        """What its seconds are counted for, the likest first."""
        return run.cell.name, run.cell.load.name, "all"


def run_matrix(
    matrix: Matrix,
    folder: Folder,
    repetitions: int,
    measure: Callable[[Run], Measured],
    show: Callable[[str, int, int, float | None], None],
    *,
    deadline: float | None = None,
    clock: Clock = time.monotonic,
) -> Outcome:
    """Measure what is missing.

    show: called with each run, how many are done and to be done, and the seconds that are left.
    deadline, on the clock: no round begins that would end later. Ctrl-C ends it, too."""
    rounds = [missing for runs in matrix.rounds(repetitions) if (missing := folder.missing(runs))]
    num_runs, num_done = sum(map(len, rounds)), 0
    durations, in_a_row = Durations(), Counter()
    try:
        for number, runs in enumerate(rounds):
            if deadline is not None and clock() + (durations.expected(runs) or 0.0) > deadline:
                return Outcome(is_out_of_time=True, given_up=_given_up(in_a_row))
            later = [run for some in rounds[number + 1 :] for run in some]
            for place, run in enumerate(runs):
                text = f"{run.cell.name}, {run.variant}, repetition {run.repetition + 1}"
                show(text, num_done, num_runs, durations.expected([*runs[place:], *later]))
                began = clock()
                measured = (
                    _given_up_run(run) if in_a_row[run.variant] >= MAX_FAILURES else measure(run)
                )
                folder.add(measured)
                if measured.failure is None:
                    durations.add(run, clock() - began)
                in_a_row[run.variant] = 0 if measured.failure is None else in_a_row[run.variant] + 1
                num_done += 1
    except KeyboardInterrupt:
        return Outcome(is_interrupted=True, given_up=_given_up(in_a_row))
    return Outcome(given_up=_given_up(in_a_row))


def _given_up_run(run: Run) -> Measured:
    return Measured(run.key, "", (), failure=f"not tried: {MAX_FAILURES} runs before it failed")


def _given_up(in_a_row: Counter) -> tuple[str, ...]:
    return tuple(name for name, count in in_a_row.items() if count >= MAX_FAILURES)
