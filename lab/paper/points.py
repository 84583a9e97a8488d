"""Measured points of figures in one JSONL file, so that a run that was ended goes on where it was.

A line is {"figure": name, "settings": {...}, "values": {...}}. A point is found again by its figure
and its settings; with other settings it is another point.
"""

import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

Settings = dict  # JSON-able
Values = dict  # JSON-able
Point = tuple[Settings, Values]


@dataclass(frozen=True)
class Figure:
    """What is measured for one figure. name: its own. settings: of each point. measure: the values
    of a point; it may raise KeyboardInterrupt."""

    name: str
    settings: tuple[Settings, ...]
    measure: Callable[[Settings], Values]


class PointFile:
    """The points that are known. ValueError on a file that is none of points, with the line and the
    remedy; OSError if it cannot be read. A last line that breaks off, as a killed run leaves it, is
    cut off."""

    def __init__(self, path: Path):
        self._path = path
        self._known: dict[str, Values] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole, _, torn = text.rpartition("\n")
        for number, line in enumerate(whole.splitlines(), start=1):
            self._known.update([_read(path, number, line)])
        if torn:
            path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")

    def values(self, figure: str, settings: Settings) -> Values | None:
        """Of a point, None if it has not been measured."""
        return self._known.get(_key(figure, settings))

    def points(self, figure: Figure) -> list[Point]:
        """Those of a figure that have been measured, in its order."""
        found = [(settings, self.values(figure.name, settings)) for settings in figure.settings]
        return [(settings, values) for settings, values in found if values is not None]

    def missing(self, figures: Iterable[Figure]) -> list[tuple[Figure, Settings]]:
        """What is to be measured."""
        return [
            (f, settings)
            for f in figures
            for settings in f.settings
            if self.values(f.name, settings) is None
        ]

    def add(self, figure: str, settings: Settings, values: Values) -> None:
        """Keep a point, at once on disk."""
        line = json.dumps(
            {"figure": figure, "settings": settings, "values": values}, allow_nan=False
        )
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        self._known[_key(figure, settings)] = json.loads(line)["values"]


_Job = tuple[str, Settings, Callable[[Settings], Values]]


def measure_missing(
    file: PointFile,
    figures: Sequence[Figure],
    on_point: Callable[[str], None] = lambda name: None,
    processes: int = 1,
) -> None:
    """Measure every point that is not known, so many at once. on_point: called with the figure's
    name after each. What an exception, KeyboardInterrupt among them, ends is not kept, and all that
    was measured before is."""
    jobs = [(figure.name, settings, figure.measure) for figure, settings in file.missing(figures)]
    for name, settings, values in (
        map(_measured, jobs) if processes == 1 else _at_once(jobs, processes)
    ):
        file.add(name, settings, values)
        on_point(name)


def _measured(job: _Job) -> tuple[str, Settings, Values]:
    name, settings, measure = job
    return name, settings, measure(settings)


def _at_once(jobs: list[_Job], processes: int) -> Iterator[tuple[str, Settings, Values]]:
    """In the order in which they end. At a terminal Ctrl-C goes to all processes: those that
    measure ignore it, and this one ends them."""
    with get_context("spawn").Pool(
        processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)
    ) as pool:
        yield from pool.imap_unordered(_measured, jobs)


def _key(figure: str, settings: Settings) -> str:
    return json.dumps([figure, settings], sort_keys=True)


def _read(path: Path, number: int, line: str) -> tuple[str, Values]:
    try:
        data = json.loads(line)
        return _key(data["figure"], data["settings"]), dict(data["values"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path}, line {number} is no measured point ({error!r}): delete the line to measure "
            "it again, or name another --output"
        ) from error
