"""The progress that `smartspec report` shows while it measures."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartspec.report.matrix import Run


class Bar:
    """A bar on standard error: the run under way, how many are done, and what is left. A line for
    each run where that is no terminal."""

    def __init__(self, bar, task_id):
        self._bar, self._task_id = bar, task_id

    def starting(self, name: str) -> None:
        self._update(f"starting the server {name}", "")

    def show(self, run: "Run", num_done: int, num_runs: int, seconds_left: float | None) -> None:
        text = f"{run.cell.name}, {run.variant}, repetition {run.repetition + 1}"
        left = "" if seconds_left is None else f"about {_spoken(seconds_left)} left"
        self._update(text, left, completed=num_done, total=num_runs)

    def _update(self, text: str, left: str, **counts: int) -> None:
        self._bar.update(self._task_id, description=text, left=left, **counts)
        if not self._bar.console.is_terminal:
            done = "{completed}/{total} ".format(**counts) if counts else ""
            print(f"{done}{text}" + (f", {left}" if left else ""), file=sys.stderr, flush=True)


def _spoken(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


@contextmanager
def progress() -> Iterator[Bar]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(
        *columns, console=Console(stderr=True), refresh_per_second=1, transient=True
    ) as bar:
        yield Bar(bar, bar.add_task("", total=None, left=""))
