"""A bar on standard error: what is under way, how much is done, and what is left."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Bar:
    """Moves the bar. A line each time where that is no terminal."""

    def __init__(self, bar, task_id):
        self._bar, self._task_id = bar, task_id

    def show(
        self, text: str, done: int = 0, total: int | None = None, seconds_left: float | None = None
    ) -> None:
        left = "" if seconds_left is None else f"about {_spoken(seconds_left)} left"
        self._bar.update(self._task_id, description=text, left=left, completed=done, total=total)
        if not self._bar.console.is_terminal:
            counts = f"{done}/{total} " if total else ""
            print(f"{counts}{text}" + (f", {left}" if left else ""), file=sys.stderr, flush=True)


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
