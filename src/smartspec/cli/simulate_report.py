"""Saves, draws and prints the runs of `smartspec simulate`."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartspec.sim.scenario import Scenario
    from smartspec.sim.simulation import SimulationResult

MAX_REASONS = 5


def report(
    outcomes: list["SimulationResult"], num_planned: int, output: Path | None, plot: Path | None
) -> None:
    """Save and draw at least one run if an option says so, then print. num_planned: runs that were
    to be made."""
    from smartspec.bench.report import run_json, write_json

    written = []
    # before the table, as its reader may stop early (`| head`); a failure here must not lose the
    # table
    try:
        if output is not None:
            runs = [
                run_json(outcome.settings, outcome.summary, outcome.run.records)
                for outcome in outcomes
            ]
            write_json(output, {"runs": runs})
            written.append(f"saved to {output}")
        if plot is not None and _draw(outcomes, plot):
            written.append(f"drawn to {plot}")
    finally:
        _print(outcomes, [*_notes(outcomes, num_planned), *written])


def _draw(outcomes: list["SimulationResult"], plot: Path) -> bool:
    """Draw the completed requests; False if there was none."""
    import numpy as np

    from smartspec.bench.comparison import draw_latencies

    latencies = {}
    for outcome in outcomes:
        seconds = [
            record.end_to_end_seconds for record in outcome.run.records if record.error is None
        ]
        latencies.setdefault(_label(outcome), []).extend(seconds)
    arrays = {label: np.array(seconds) for label, seconds in latencies.items() if seconds}
    if arrays:
        draw_latencies(arrays, plot, _title(outcomes[0].scenario))
    return bool(arrays)


def _print(outcomes: list["SimulationResult"], lines: list[str]) -> None:
    from rich.console import Console

    from smartspec.bench.comparison import comparison_table

    summaries = {}
    for outcome in outcomes:
        summaries.setdefault(_label(outcome), []).append(outcome.summary)
    console = Console()
    console.print(comparison_table(summaries, _title(outcomes[0].scenario)))
    num_row_steps = sum(outcome.run.totals.num_row_steps for outcome in outcomes)
    wall_seconds = sum(outcome.wall_seconds for outcome in outcomes)
    events = f"{num_row_steps / wall_seconds:,.0f} per second" if wall_seconds else "none"
    console.print(f"simulated row steps: {num_row_steps:,} ({events})", highlight=False)
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _label(outcome: "SimulationResult") -> str:
    """Names a run that was cut short as such: only its short requests ended, which makes it look
    better."""
    policy = outcome.scenario.policy
    return f"{policy} (interrupted)" if outcome.is_interrupted else policy


def _notes(outcomes: list["SimulationResult"], num_planned: int) -> list[str]:
    """Notes below the table: requests that were refused, runs that were cut short or never
    begun."""
    lines = _refusals(outcomes) + _charged(outcomes)
    for outcome in outcomes:
        if outcome.is_interrupted:
            name = f"{outcome.scenario.policy} with seed {outcome.scenario.seed}"
            num_unfinished = outcome.summary.num_unfinished
            lines.append(
                f"interrupted: {name} has {num_unfinished} requests not finished, the longer ones: "
                "do not compare it"
            )
    num_whole = sum(not outcome.is_interrupted for outcome in outcomes)
    if num_whole < num_planned:
        lines.append(f"runs played to their end: {num_whole} of {num_planned}")
    return lines


def _charged(outcomes: list["SimulationResult"]) -> list[str]:
    """Time that the policies were charged for their own decisions."""
    tables = {outcome.scenario.policy: outcome.scenario.controller_seconds for outcome in outcomes}
    if not any(tables.values()):
        return ["the controller's own time is not charged"]
    spans = [
        f"{policy} {table[0][1] * 1e3:.2f} to {table[-1][1] * 1e3:.2f}"
        for policy, table in tables.items()
    ]
    return [f"charged for the controller, ms per step of few to many requests: {', '.join(spans)}"]


def _refusals(outcomes: list["SimulationResult"]) -> list[str]:
    """The number of requests that the table leaves out, and the commonest reasons."""
    refused, total, reasons = Counter(), Counter(), Counter()
    for outcome in outcomes:
        policy, summary = outcome.scenario.policy, outcome.summary
        refused[policy] += summary.num_errors
        total[policy] += summary.num_completed + summary.num_errors + summary.num_unfinished
        reasons.update(summary.errors)
    if not total.total():
        return ["no request arrived: give more --seconds"]
    if not refused.total():
        return []
    shares = ", ".join(f"{policy} {refused[policy]} of {total[policy]}" for policy in total)
    lines = [
        f"refused, and not in the table: {refused.total()} of {total.total()} requests ({shares})"
    ]
    shown = reasons.most_common(MAX_REASONS)
    lines += [f"{count} refused: {reason}" for reason, count in shown]
    num_others = refused.total() - sum(count for _, count in shown)
    return lines + [f"{num_others} refused for reasons like these"] * (num_others > 0)


def _title(scenario: "Scenario") -> str:
    loads = {
        "": scenario.rate and f"{scenario.rate:g} requests/s",
        "trace ": scenario.trace and Path(scenario.trace).stem,
        "batch ": scenario.batch,
    }
    load = next(f"{name}{value}" for name, value in loads.items() if value)
    name = Path(scenario.hardware).name
    where = f"{scenario.model} on {scenario.tensor_parallel} x {name}"
    if scenario.is_measured:
        where = f"the machine and model of {name}"
    acceptance = (
        f"acceptance {scenario.acceptance}" if scenario.texts is None else f"texts {scenario.texts}"
    )
    return f"{where}, {load}, drafter {scenario.drafter}, {acceptance}"
