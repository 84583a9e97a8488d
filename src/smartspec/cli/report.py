"""`smartspec report`: a matrix of policies, workloads and loads, measured or simulated, as one
page."""

import shlex
import signal
import sys
import time
from typing import TYPE_CHECKING

import typer

from smartspec.cli.options import command
from smartspec.cli.report_matrix import matrix_of, scenario_settings, server_options
from smartspec.cli.report_options import Chosen, simulated_parameters

if TYPE_CHECKING:
    from smartspec.report.matrix import Matrix
    from smartspec.report.running import Outcome


@command(Chosen, simulated_parameters())
def report(chosen: Chosen, **given) -> None:
    """Measure policies or servers under workloads and loads; write one page that says who is
    faster, and where not.

    Without options: the embedded model, our server with three policies, for about an hour. --quick:
    a first answer in five minutes. The same command goes on where it was ended. Ctrl-C keeps what
    there is.
    Exit codes: 130 after Ctrl-C, 1 if runs failed.

    Example: smartspec report --quick --output my-report
    """
    from smartspec.report.environment import environment
    from smartspec.report.folder import Folder
    from smartspec.report.story import our_variant

    began = time.monotonic()
    for name in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: started servers end with this process
        signal.signal(name, signal.default_int_handler)
    settings = scenario_settings(chosen, given)
    matrix, prompts = matrix_of(chosen, settings)
    ours = our_variant(matrix, chosen.subject)
    folder = Folder.open(chosen.output, matrix, environment(), _command_line())
    outcome = _measure(chosen, matrix, prompts, folder, settings, began)
    try:
        write_report(matrix, folder, ours)
    except KeyboardInterrupt:  # the page takes seconds
        print(
            "interrupted: what was measured is kept, and the same command writes the page",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    _tell(chosen, folder, outcome)


def _measure(
    chosen: Chosen, matrix: "Matrix", prompts, folder, settings: dict, began: float
) -> "Outcome":
    """Nothing is started if nothing is missing."""
    from smartspec.cli.report_progress import progress
    from smartspec.report.live import live_runs
    from smartspec.report.running import Outcome, run_matrix
    from smartspec.report.simulated import simulated_runs

    repetitions, deadline = chosen.repetitions_or_default, None
    if (minutes := chosen.minutes_or_default) is not None:
        deadline = began + 60 * minutes
    if not any(folder.missing(runs) for runs in matrix.rounds(repetitions)):
        return Outcome()
    try:
        with progress() as display:
            if chosen.simulate:
                measure = simulated_runs(matrix, settings, chosen.controller_time == "measured")
                return run_matrix(matrix, folder, repetitions, measure, display, deadline=deadline)
            with live_runs(
                matrix, prompts, server_options(chosen), folder.path, display.starting
            ) as measure:
                return run_matrix(matrix, folder, repetitions, measure, display, deadline=deadline)
    except KeyboardInterrupt:  # while servers start or stop
        return Outcome(is_interrupted=True)


def write_report(matrix: "Matrix", folder, ours: str) -> None:
    """The page and the summary of what the folder holds."""
    from smartspec.bench.report import write_json
    from smartspec.report.folder import PAGE, SUMMARY
    from smartspec.report.page import write_page
    from smartspec.report.story import Results, sections_of, summary_of

    results = Results(
        matrix, folder.valid(), folder.failed(), folder.environment, folder.command, ours
    )
    write_page(folder.path / PAGE, "SmartSpec report", sections_of(results))
    write_json(folder.path / SUMMARY, summary_of(results))


def _tell(chosen: Chosen, folder, outcome: "Outcome") -> None:
    from smartspec.report.folder import PAGE

    num_valid, num_failed = len(folder.valid()), len(folder.failed())
    print(
        f"{folder.path / PAGE}: {num_valid} runs" + (f", {num_failed} failed" if num_failed else "")
    )
    for name in outcome.given_up:
        print(f"warning: {name} failed several times in a row and was given up", file=sys.stderr)
    if outcome.is_interrupted:
        print(
            "interrupted: what was measured is kept, and the same command goes on", file=sys.stderr
        )
        raise typer.Exit(130)
    if outcome.is_out_of_time:
        print("the time is over: what was measured is kept, and the same command goes on")
    if num_failed:
        raise typer.Exit(1)


def _command_line() -> str:
    """The command as a person types it; a key is left out."""
    arguments = list(sys.argv[1:])
    for place, argument in enumerate(arguments):
        if argument == "--api-key" and place + 1 < len(arguments):
            arguments[place + 1] = "..."
        elif argument.startswith("--api-key="):
            arguments[place] = "--api-key=..."
    return shlex.join(["smartspec", *arguments])
