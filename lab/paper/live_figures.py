"""Figures measured on the embedded engine: chosen length against batch size with forced acceptance,
and predictions against what was measured. Latency against rate is a matrix of runs (live_matrix).

Servers are processes of their own; one at a time has work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lab.paper.capacity import served
from lab.paper.cells import Effort
from lab.paper.points import Figure, Point, PointFile, Settings, Values
from lab.paper.predictions import goodput_section, measured_in_log, time_section
from smartspec.report.environment import environment
from smartspec.report.folder import Folder, Measured
from smartspec.report.live import ServerOptions, live_runs
from smartspec.report.matrix import CHANGING, MIXED, Cell, Load, Matrix, Run, Step, Variant
from smartspec.report.page_parts import Line, Plot, Section, Table
from smartspec.report.results import Results
from smartspec.report.sections import sections_of
from smartspec.workload.workloads import shipped_workloads

CAPACITY, LENGTHS, PREDICTIONS = "live_capacity", "live_lengths", "live_predictions"
ACCEPTANCES = (0.5, 0.7, 0.9)
# of a tree, forced acceptance tries the likeliest children alone: the others are for nothing
CHAINS = "recycling"
POLICIES = ("off", "fixed:1", "fixed:3", "goodput")
WORKLOADS = ("chat", "summarization", MIXED)
WAVES = 6  # so many times as many requests as are under way, to see what off can serve


def live_figures(folder: Path, effort: Effort) -> tuple[Figure, ...]:
    """folder: for the output of servers and their decision logs."""
    live = effort.live
    sizes = {"concurrency": list(live.concurrency), "max_tokens": live.max_tokens}
    forced = {"policy": "goodput", "drafter": CHAINS} | sizes
    lengths = tuple({"acceptance": acceptance} | forced for acceptance in ACCEPTANCES)
    served = tuple({"cell": name, "concurrency": live.batch, "waves": WAVES} for name in WORKLOADS)
    return (
        Figure(CAPACITY, served, partial(measure_capacity, folder)),
        Figure(LENGTHS, lengths, partial(measure_lengths, folder)),
        Figure(PREDICTIONS, ({"policy": "goodput"} | sizes,), partial(measure_predictions, folder)),
    )


def measure_capacity(folder: Path, settings: Settings) -> Values:
    """Requests per second that off serves, so many at once."""
    batch = settings["concurrency"]
    cell = Cell(settings["cell"], Load(concurrency=batch))
    matrix = Matrix((Variant("live", "off", "none"),), (cell,), requests=settings["waves"] * batch)
    with live_runs(matrix, shipped_workloads(), ServerOptions(), folder) as measure:
        return {
            "requests_per_second": served(_succeeded(measure(Run("live", cell, 0))).records, batch)
        }


def measure_lengths(folder: Path, settings: Settings) -> Values:
    """By requests at once: draft tokens verified per request and step, and the share of them that
    was accepted."""
    options = ("--forced-acceptance", str(settings["acceptance"]), "--drafter", settings["drafter"])
    found = _measured(folder, settings, options)
    return {
        "sizes": [{"concurrency": concurrency} | speculation for concurrency, speculation in found]
    }


def measure_predictions(folder: Path, settings: Settings) -> Values:
    """StepTable.summary of the decision log of a server, at all these numbers of requests."""
    log = folder / "live-predictions.jsonl"
    log.unlink(missing_ok=True)  # of a run that was ended
    _measured(folder, settings, ("--decision-log", str(log)))
    point, summary = measured_in_log(log)
    return {"model": point["model"]} | summary


def _measured(folder: Path, settings: Settings, options: tuple[str, ...]) -> list[tuple[int, dict]]:
    """By requests at once, what the server said of speculation. ValueError if a run failed."""
    cells = tuple(
        Cell(MIXED, Load(concurrency=concurrency)) for concurrency in settings["concurrency"]
    )
    matrix = Matrix(
        (Variant("live", settings["policy"]),), cells, max_tokens=settings["max_tokens"]
    )
    found = []
    with live_runs(
        matrix, shipped_workloads(), ServerOptions(options=options, ignore_eos=True), folder
    ) as measure:
        for cell in cells:
            speculation = _succeeded(measure(Run("live", cell, 0))).summary.speculation
            if speculation is None:
                raise ValueError(f"{cell.name}: the server counts no draft tokens")
            told = {"mean_length": speculation.mean_k, "acceptance": speculation.acceptance_rate}
            found.append((cell.load.concurrency, told))
    return found


def _succeeded(measured: Measured) -> Measured:
    if measured.failure is not None:
        raise ValueError(f"{measured.key[1]}: {measured.failure}")
    return measured


def live_matrix(capacities: Mapping[str, float], effort: Effort) -> Matrix:
    """Latency against rate of every policy, and rate steps with mixed data. Rates are shares of
    what off can serve, capacities: requests per second by workload."""
    variants = tuple(
        Variant(policy, policy, "none" if policy == "off" else None) for policy in POLICIES
    )
    rates = {
        name: [float(f"{share * served:.2g}") for share in effort.live.shares]
        for name, served in capacities.items()
    }
    steps = tuple(Step(MIXED, rate, effort.live.seconds / 2) for rate in rates.pop(MIXED))
    cells = [
        Cell(workload, Load(rate=rate))
        for workload, of_workload in rates.items()
        for rate in of_workload
    ]
    return Matrix(
        variants, (*cells, Cell(CHANGING, Load(steps=steps))), seconds=effort.live.seconds
    )


def live_sections(file: PointFile, figures: Sequence[Figure]) -> list[Section]:
    """Of the points that have been measured; figures: live_figures."""
    lengths, measured = (file.points(figure) for figure in figures[1:])
    found = [live_length_section(lengths)] if lengths else []
    if measured:
        ((settings, summary),) = measured
        points = [(settings | {"model": summary["model"], "profile": 1.0}, summary)]
        found += [goodput_section(points, "measured"), time_section(points, "measured")]
    return found


def matrix_sections(path: Path, matrix: Matrix) -> list[Section]:
    """What a folder of live_matrix holds, as every report has it."""
    folder = Folder.open(path, matrix, environment(), "")
    if not folder.valid():
        return []
    results = Results(
        matrix, folder.valid(), folder.failed(), folder.environment, folder.command, "goodput"
    )
    return [
        replace(section, title=f"Measured: {section.title}") for section in sections_of(results)
    ]


def live_length_section(points: Sequence[Point]) -> Section:
    """The section of the page."""
    lines, rows = [], []
    for settings, values in points:
        known = [size for size in values["sizes"] if size["mean_length"] is not None]
        x = tuple(float(size["concurrency"]) for size in known)
        lines.append(
            Line(
                f"acceptance {settings['acceptance']}",
                x,
                tuple(size["mean_length"] for size in known),
            )
        )
        rows += [(settings["acceptance"], size) for size in known]
    rows.sort(key=lambda row: -abs((row[1]["acceptance"] or 0.0) - row[0]))
    return Section(
        title="Chosen length against batch size (measured, forced acceptance)",
        text=(
            "The embedded engine with --forced-acceptance: every draft token is accepted with this "
            "chance, whatever the target says. The work of a step is a real one, the text is "
            "invalid.",
            "Drafts are chains of recycling. Where its table has no next token, a request has no "
            "draft, so lengths are below those of a draft model that always drafts.",
        ),
        plots=(
            Plot(
                "goodput",
                "requests at once",
                "draft tokens per request and step",
                tuple(lines),
                log_x=True,
            ),
        ),
        tables=(
            Table(
                "Largest difference from the forced acceptance first",
                ("forced", "requests", "length", "accepted / verified"),
                tuple(
                    (
                        f"{forced:g}",
                        str(size["concurrency"]),
                        f"{size['mean_length']:.2f}",
                        _share(size["acceptance"]),
                    )
                    for forced, size in rows
                ),
                "Accepted / verified is below the chance, as what comes after a rejection was "
                "verified in vain.",
            ),
        ),
        command="python -m lab.paper --live",
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
