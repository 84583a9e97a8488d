"""The figures of the SmartSpec paper as a page, from what is measured and what is missing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from lab.paper.points import Figure, Point, PointFile
    from smartspec.report.sections import Section

POINTS, PAGE, LIVE = "paper.jsonl", "paper.html", "live"
TITLE = "The figures of the SmartSpec paper, made here"


def report_paper(output: Path, live: bool = False, decision_log: Path | None = None) -> None:
    """Measure what is missing and write the page into the folder output: after Ctrl-C, or if a server fails, that of
    what there is. Exit code 130 after Ctrl-C. ValueError on a file of points or a log that cannot be used, a folder
    that cannot be written, or a server that does not answer."""
    from lab.paper.figures import simulated_figures
    from lab.paper.points import PointFile
    from lab.paper.predictions import measured_in_log

    of_log = [] if decision_log is None else [measured_in_log(decision_log)]
    failure: BaseException | None = None
    try:
        output.mkdir(parents=True, exist_ok=True)
        file = PointFile(output / POINTS)
        figures = [*simulated_figures(), *(_live_figures(output) if live else ())]
        try:
            _measure(file, figures)
            if live:
                _measure_matrix(output / LIVE)
        except (KeyboardInterrupt, ValueError) as error:
            failure = error
        _write(output, file, of_log)
    except OSError as error:
        raise ValueError(f"--output {output} cannot be written ({error.strerror}): name another folder") from error
    if isinstance(failure, KeyboardInterrupt):
        print(f"ended early, {len(file.missing(figures))} points are missing: the same command goes on")
        raise typer.Exit(130)
    if failure is not None:
        raise failure


def _live_figures(output: Path) -> "tuple[Figure, ...]":
    from lab.paper.live_figures import live_figures

    return live_figures(output)


def _measure(file: "PointFile", figures: "list[Figure]") -> None:
    from lab.paper.points import measure_missing

    with _progress(len(file.missing(figures))) as on_point:
        measure_missing(file, figures, on_point)


def _measure_matrix(path: Path) -> None:
    """Latency against rate on the embedded engine. KeyboardInterrupt on Ctrl-C."""
    from lab.paper.live_figures import REPETITIONS, live_matrix
    from smartspec.cli.report_progress import progress
    from smartspec.report.environment import environment
    from smartspec.report.folder import Folder
    from smartspec.report.live import ServerOptions, live_runs
    from smartspec.report.running import run_matrix
    from smartspec.workload.workloads import shipped_workloads

    matrix = live_matrix()
    folder = Folder.open(path, matrix, environment(), "python -m lab.paper --live")
    if not any(folder.missing(runs) for runs in matrix.rounds(REPETITIONS)):
        return
    with (
        progress() as display,
        live_runs(matrix, shipped_workloads(), ServerOptions(), path, display.starting) as measure,
    ):
        outcome = run_matrix(matrix, folder, REPETITIONS, measure, display)
    if outcome.is_interrupted:
        raise KeyboardInterrupt


def _write(output: Path, file: "PointFile", of_log: "list[Point]") -> None:
    from lab.paper.figures import simulated_sections
    from lab.paper.predictions import goodput_section, time_section
    from smartspec.report.page import write_page

    sections = [*simulated_sections(file), *_live_sections(output, file)]
    if of_log:
        sections += [goodput_section(of_log, "from the decision log"), time_section(of_log, "from the decision log")]
    write_page(output / PAGE, TITLE, sections)
    print(f"wrote {output / PAGE}, made of {output / POINTS}")


def _live_sections(output: Path, file: "PointFile") -> "list[Section]":
    """Of what has been measured on the embedded engine, now or before."""
    from lab.paper.live_figures import live_sections, matrix_sections

    figures = _live_figures(output)
    return [*live_sections(file, figures), *(matrix_sections(output / LIVE) if (output / LIVE).is_dir() else ())]


@contextmanager
def _progress(total: int) -> "Iterator[Callable[[str], None]]":
    """A bar on standard error with the time that is left; yields what is called before each point."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True) as progress:
        task_id = progress.add_task("points", total=total)
        num_begun = 0

        def on_point(name: str) -> None:
            nonlocal num_begun
            progress.update(task_id, description=name, completed=num_begun)
            num_begun += 1

        yield on_point
