"""`smartspec report --paper`: the figures of the SmartSpec paper as a page."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from smartspec.report.paper.points import PointFile

POINTS, PAGE = "paper.jsonl", "paper.html"


def report_paper(output: Path, decision_log: Path | None = None) -> None:
    """Measure what is missing and write the page into the folder output. Exit code 130 after Ctrl-C, with the page of
    what there is. ValueError on a file of points or a log that cannot be used, or a folder that cannot be written."""
    from smartspec.report.paper.figures import simulated_figures
    from smartspec.report.paper.points import PointFile, measure_missing
    from smartspec.report.paper.predictions import measured_in_log

    points = [] if decision_log is None else [measured_in_log(decision_log)]
    try:
        output.mkdir(parents=True, exist_ok=True)
        file = PointFile(output / POINTS)
        figures = simulated_figures()
        is_ended = False
        with _progress(len(file.missing(figures))) as on_point:
            try:
                measure_missing(file, figures, on_point)
            except KeyboardInterrupt:
                is_ended = True
        _write(output, file, points)
    except OSError as error:
        raise ValueError(f"--output {output} cannot be written ({error.strerror}): name another folder") from error
    if is_ended:
        print(f"ended early; the same command goes on with the {len(file.missing(figures))} points that are missing")
        raise typer.Exit(130)


def _write(output: Path, file: "PointFile", of_log: list) -> None:
    from smartspec.report.page import write_page
    from smartspec.report.paper.figures import simulated_sections
    from smartspec.report.paper.predictions import goodput_section, time_section

    sections = list(simulated_sections(file))
    if of_log:
        sections += [goodput_section(of_log, "measured"), time_section(of_log, "measured")]
    write_page(output / PAGE, "The figures of the SmartSpec paper, made here", sections)
    print(f"wrote {output / PAGE}, made of {output / POINTS}")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
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
