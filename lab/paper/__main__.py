"""`python -m lab.paper`: the figures of the SmartSpec paper."""

from pathlib import Path
from typing import Annotated

import typer

from lab.paper.cells import FULL, QUICK
from lab.paper.paper_figures import report_paper
from smartspec.cli.main import run

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def paper(
    output: Annotated[
        Path, typer.Option(help="Folder of the page and of every measured point.")
    ] = Path("report-paper"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look: short runs of one seed.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Those of the embedded engine, too.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="Simulated points at the same time.")] = 2,
    decision_log: Annotated[
        Path | None, typer.Option(help="Predictions of this log of a server, too.")
    ] = None,
) -> None:
    """Measure the figures of arXiv 2406.14066 that are missing, and write them as a page.

    Ctrl-C keeps what there is, and the same command goes on.
    """
    report_paper(output, QUICK if quick else FULL, live, decision_log, processes)


if __name__ == "__main__":
    run(app)
