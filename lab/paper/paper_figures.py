"""The figures of the SmartSpec paper as a page, from what is measured and what is missing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from lab.paper.cells import Effort
    from lab.paper.points import Figure, Point, PointFile
    from smartspec.report.matrix import Matrix
    from smartspec.report.page_parts import Section

POINTS, PAGE, LIVE = "paper.jsonl", "paper.html", "live"
TITLE = "The figures of the SmartSpec paper, made here"


def report_paper(
    output: Path,
    effort: "Effort",
    live: bool = False,
    decision_log: Path | None = None,
    processes: int = 1,
) -> None:
    """Measure what is missing and write the page into the folder output: after Ctrl-C, or if a
    server fails, that of what there is. Exit code 130 after Ctrl-C. ValueError on a file of points
    or a log that cannot be used, a folder that cannot be written, or a server that does not
    answer."""
    from lab.paper.points import PointFile
    from lab.paper.predictions import measured_in_log

    of_log = [] if decision_log is None else [measured_in_log(decision_log)]
    failure: BaseException | None = None
    try:
        output.mkdir(parents=True, exist_ok=True)
        file = PointFile(output / POINTS)
        try:
            _measure(file, effort, processes)
            if live:
                _measure_live(file, output, effort)
        except (KeyboardInterrupt, ValueError) as error:
            failure = error
        _write(output, file, effort, of_log)
    except OSError as error:
        raise ValueError(
            f"--output {output} cannot be written ({error.strerror}): name another folder"
        ) from error
    if isinstance(failure, KeyboardInterrupt):
        print("ended early, points are missing: the same command goes on")
        raise typer.Exit(130)
    if failure is not None:
        raise failure


def _measure(file: "PointFile", effort: "Effort", processes: int) -> None:
    """First what off can serve: the rates of the others follow from it."""
    from lab.paper import figures

    _measure_missing(file, [figures.capacity_figure(effort)], processes)
    _measure_missing(file, figures.simulated_figures(file, effort), processes)


def _measure_live(file: "PointFile", output: Path, effort: "Effort") -> None:
    from lab.paper.live_figures import live_figures

    _measure_missing(file, live_figures(output, effort), 1)
    matrix = _live_matrix(output, file, effort)
    assert matrix is not None, "what off can serve has just been measured"
    _measure_matrix(output / LIVE, matrix, effort.live.repetitions)


def _measure_missing(
    file: "PointFile", figures: "tuple[Figure, ...] | list[Figure]", processes: int
) -> None:
    from lab.paper.points import measure_missing

    with _progress(len(file.missing(figures))) as on_point:
        measure_missing(file, figures, on_point, processes)


def _measure_matrix(path: Path, matrix: "Matrix", repetitions: int) -> None:
    """Latency against rate on the embedded engine. KeyboardInterrupt on Ctrl-C."""
    from smartspec.cli.progress import progress
    from smartspec.report.environment import environment
    from smartspec.report.folder import Folder
    from smartspec.report.live import ServerOptions, live_runs
    from smartspec.report.running import run_matrix
    from smartspec.workload.workloads import shipped_workloads

    folder = Folder.open(path, matrix, environment(), "python -m lab.paper --live")
    if not any(folder.missing(runs) for runs in matrix.rounds(repetitions)):
        return
    with (
        progress() as bar,
        live_runs(matrix, shipped_workloads(), ServerOptions(), path, bar.show) as measure,
    ):
        outcome = run_matrix(matrix, folder, repetitions, measure, bar.show)
    if outcome.is_interrupted:
        raise KeyboardInterrupt


def _live_matrix(output: Path, file: "PointFile", effort: "Effort") -> "Matrix | None":
    """None as long as it is not known what off can serve."""
    from lab.paper.capacity import capacities
    from lab.paper.live_figures import WORKLOADS, live_figures, live_matrix

    known = capacities(file.points(live_figures(output, effort)[0]))
    return live_matrix(known, effort) if len(known) == len(WORKLOADS) else None


def _write(output: Path, file: "PointFile", effort: "Effort", of_log: "list[Point]") -> None:
    from lab.paper.figures import simulated_sections
    from lab.paper.predictions import goodput_section, time_section
    from smartspec.report.page import write_page

    sections = [*simulated_sections(file, effort), *_live_sections(output, file, effort)]
    if of_log:
        sections += [
            goodput_section(of_log, "from the decision log"),
            time_section(of_log, "from the decision log"),
        ]
    write_page(output / PAGE, TITLE, sections)
    print(f"wrote {output / PAGE}, made of {output / POINTS}")


def _live_sections(output: Path, file: "PointFile", effort: "Effort") -> "list[Section]":
    """Of what has been measured on the embedded engine, now or before."""
    from lab.paper.live_figures import live_figures, live_sections, matrix_sections

    matrix, path = _live_matrix(output, file, effort), output / LIVE
    of_matrix = matrix_sections(path, matrix) if matrix is not None and path.is_dir() else []
    return [*live_sections(file, live_figures(output, effort)), *of_matrix]


@contextmanager
def _progress(total: int) -> "Iterator[Callable[[str], None]]":
    """A bar on standard error with the time that is left, or lines where that is no terminal;
    yields what is called after each point."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, refresh_per_second=2, transient=True) as progress:
        task_id = progress.add_task("points", total=total)

        def on_point(name: str) -> None:
            progress.update(task_id, description=name, advance=1)
            if not console.is_terminal:
                print(
                    f"{progress.tasks[0].completed:.0f}/{total} {name}",
                    file=console.file,
                    flush=True,
                )

        yield on_point
