"""Figures measured on the embedded engine: chosen length against batch size with forced acceptance, and predictions
against what was measured. Latency against rate is a matrix of runs (live_matrix).

Servers are processes of their own; one at a time has work.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lab.paper.points import Figure, Point, PointFile, Settings, Values
from lab.paper.predictions import goodput_section, measured_in_log, time_section
from smartspec.report.environment import environment
from smartspec.report.folder import Folder
from smartspec.report.live import ServerOptions, live_runs
from smartspec.report.matrix import CHANGING, MIXED, Cell, Load, Matrix, Run, Step, Variant
from smartspec.report.sections import Line, Plot, Section, Table
from smartspec.report.story import Results, sections_of
from smartspec.workload.workloads import shipped_workloads

LENGTHS, PREDICTIONS = "live_lengths", "live_predictions"
ACCEPTANCES = (0.5, 0.7, 0.9)
CONCURRENCY = (1, 2, 4, 8, 16)
MAX_TOKENS = 96
CHAINS = "recycling"  # of a tree, forced acceptance tries the likeliest children alone: the others are for nothing
POLICIES = ("off", "fixed:1", "fixed:3", "fixed:5", "goodput", "smartspec-paper")
WORKLOADS, RATES = ("chat", "summarization"), (0.5, 1.0, 2.0)
SECONDS, STEP_SECONDS = 20.0, 10.0
REPETITIONS = 3  # the fewest that have a verdict


def live_figures(folder: Path) -> tuple[Figure, ...]:
    """folder: for the output of servers and their decision logs."""
    sizes = {"concurrency": list(CONCURRENCY), "max_tokens": MAX_TOKENS}
    forced = {"policy": "goodput", "drafter": CHAINS} | sizes
    lengths = tuple({"acceptance": acceptance} | forced for acceptance in ACCEPTANCES)
    return (
        Figure(LENGTHS, lengths, partial(measure_lengths, folder)),
        Figure(PREDICTIONS, ({"policy": "goodput"} | sizes,), partial(measure_predictions, folder)),
    )


def measure_lengths(folder: Path, settings: Settings) -> Values:
    """By requests at once: draft tokens verified per request and step, and the share of them that was accepted."""
    options = ("--forced-acceptance", str(settings["acceptance"]), "--drafter", settings["drafter"])
    found = _measured(folder, settings, options)
    return {"sizes": [{"concurrency": concurrency} | speculation for concurrency, speculation in found]}


def measure_predictions(folder: Path, settings: Settings) -> Values:
    """StepTable.summary of the decision log of a server, at all these numbers of requests."""
    log = folder / "live-predictions.jsonl"
    log.unlink(missing_ok=True)  # of a run that was ended
    _measured(folder, settings, ("--decision-log", str(log)))
    point, summary = measured_in_log(log)
    return {"model": point["model"]} | summary


def _measured(folder: Path, settings: Settings, options: tuple[str, ...]) -> list[tuple[int, dict]]:
    """By requests at once, what the server said of speculation. ValueError if a run failed."""
    cells = tuple(Cell(MIXED, Load(concurrency=concurrency)) for concurrency in settings["concurrency"])
    matrix = Matrix((Variant("live", settings["policy"]),), cells, max_tokens=settings["max_tokens"])
    found = []
    with live_runs(matrix, shipped_workloads(), ServerOptions(options=options, ignore_eos=True), folder) as measure:
        for cell in cells:
            measured = measure(Run("live", cell, 0))
            if measured.failure is not None:
                raise ValueError(f"{cell.name}: {measured.failure}")
            speculation = measured.summary.speculation
            if speculation is None:
                raise ValueError(f"{cell.name}: the server counts no draft tokens")
            told = {"mean_length": speculation.mean_k, "acceptance": speculation.acceptance_rate}
            found.append((cell.load.concurrency, told))
    return found


def live_matrix() -> Matrix:
    """Latency against rate of every policy, and the rate steps with mixed data."""
    variants = tuple(Variant(policy, policy, "none" if policy == "off" else None) for policy in POLICIES)
    cells = [Cell(workload, Load(rate=rate)) for workload in WORKLOADS for rate in RATES]
    steps = tuple(Step(MIXED, rate, STEP_SECONDS) for rate in RATES)
    return Matrix(variants, (*cells, Cell(CHANGING, Load(steps=steps))), seconds=SECONDS)


def live_sections(file: PointFile, figures: Sequence[Figure]) -> list[Section]:
    """Of the points that have been measured; figures: live_figures."""
    lengths, measured = (file.points(figure) for figure in figures)
    found = [live_length_section(lengths)] if lengths else []
    if measured:
        ((settings, summary),) = measured
        points = [(settings | {"model": summary["model"], "profile": 1.0}, summary)]
        found += [goodput_section(points, "measured"), time_section(points, "measured")]
    return found


def matrix_sections(path: Path) -> list[Section]:
    """What a folder of live_matrix holds, as every report has it."""
    folder = Folder.open(path, live_matrix(), environment(), "")
    if not folder.valid():
        return []
    results = Results(live_matrix(), folder.valid(), folder.failed(), folder.environment, folder.command, "goodput")
    return [replace(section, title=f"Measured: {section.title}") for section in sections_of(results)]


def live_length_section(points: Sequence[Point]) -> Section:
    """The section of the page."""
    lines, rows = [], []
    for settings, values in points:
        known = [size for size in values["sizes"] if size["mean_length"] is not None]
        x = tuple(float(size["concurrency"]) for size in known)
        lines.append(Line(f"acceptance {settings['acceptance']}", x, tuple(size["mean_length"] for size in known)))
        rows += [(settings["acceptance"], size) for size in known]
    rows.sort(key=lambda row: -abs((row[1]["acceptance"] or 0.0) - row[0]))
    return Section(
        title="Chosen length against batch size (measured, forced acceptance)",
        text=(
            "The embedded engine with --forced-acceptance: every draft token is accepted with this chance, whatever "
            "the target says. The work of a step is a real one, the text is invalid.",
            "Drafts are chains of recycling. Where its table has no next token, a request has no draft, so lengths are "
            "below those of a draft model that always drafts.",
        ),
        plots=(Plot("goodput", "requests at once", "draft tokens per request and step", tuple(lines), log_x=True),),
        tables=(
            Table(
                "Largest difference from the forced acceptance first",
                ("forced", "requests", "length", "accepted / verified"),
                tuple(
                    (f"{forced:g}", str(size["concurrency"]), f"{size['mean_length']:.2f}", _share(size["acceptance"]))
                    for forced, size in rows
                ),
                "Accepted / verified is below the chance, as what comes after a rejection was verified in vain.",
            ),
        ),
        command="python -m lab.paper --live",
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
