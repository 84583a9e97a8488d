"""`smartspec simulate`: policies compared in virtual time, on named hardware."""

import sys
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from smartspec.cli.options import command
from smartspec.cli.output_files import check_output
from smartspec.cli.policy_list import policy_list
from smartspec.cli.runs import play
from smartspec.cli.scenario_options import scenario_options, settings_of

if TYPE_CHECKING:
    from smartspec.sim.scenario import Scenario
    from smartspec.sim.simulation import SimulationResult

MAX_REASONS = 5


class ControllerTime(StrEnum):
    """Whether a step takes longer by the controller's own time."""

    MEASURED = "measured"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The runs to make of a scenario, and the place of their results."""

    policy: Annotated[
        str | None,
        Option(
            help="Policies to compare, separated by commas, module:Class too; field: the published "
            "ones, which are in the repository's lab; all: every one there is; perfect-estimates "
            "and perfect-outcomes are told the ground truth.",
            show_default="off,fixed:4,goodput,perfect-estimates",
        ),
    ] = None
    controller_time: Annotated[
        ControllerTime,
        Option(
            help="The controller's own time per step: as measured on this machine before the runs."
        ),
    ] = ControllerTime.MEASURED
    card: Annotated[
        Path | None,
        Option(
            help="Play a card (docs/observe.md): its step times, drafter and acceptance take the "
            "place of --hardware, --drafter, --max-draft-tokens and, unless that is given, "
            "--acceptance."
        ),
    ] = None
    seeds: Annotated[int, Option(min=1, help="Runs of each policy.")] = 1
    seed: Annotated[int, Option(min=0, help="The first seed.")] = 0
    processes: Annotated[int, Option(min=1, help="Runs that execute at the same time.")] = 1
    output: Annotated[
        Path | None, Option(help="Save settings, summaries and every request as JSON.")
    ] = None


@command(Comparison, scenario_options())
def simulate(compared: Comparison, **given) -> None:
    """Compare policies under the same requests and random numbers; give one of --rate, --trace and
    --batch.

    Time and acceptance are computed instead of run; scheduler, step loop and controller are those
    of the engine. Ctrl-C reports and saves what there is by then. Exit codes: 130 after Ctrl-C, 1
    if a process was killed.

    Example: smartspec simulate --hardware h100 --model 70b --tensor-parallel 4 --rate 4 --seeds 3
    """
    from smartspec.sim.controller_time import measured_controller_seconds
    from smartspec.sim.scenario import Scenario

    if compared.output is not None:
        check_output("--output", compared.output)
    settings = settings_of(given)
    if compared.card is not None:
        from smartspec.sim.card_settings import with_card

        settings = with_card(settings, compared.card)
    names = _policies(compared.policy, settings["max_draft_tokens"])
    planned = [Scenario(policy=name, seed=compared.seed, **settings) for name in names]
    if compared.controller_time is ControllerTime.MEASURED:
        planned = [
            replace(each, controller_seconds=measured_controller_seconds(each)) for each in planned
        ]
    scenarios = [
        replace(scenario, seed=compared.seed + i)
        for i in range(compared.seeds)
        for scenario in planned
    ]
    outcomes, failure = play(scenarios, compared.processes)
    if outcomes:
        _report(outcomes, len(scenarios), compared.output)
    if isinstance(failure, KeyboardInterrupt):
        raise Exit(130)
    if isinstance(failure, BrokenProcessPool):
        print(
            "error: a process was killed, maybe for want of memory: give fewer --processes",
            file=sys.stderr,
        )
        raise Exit(1)
    if failure is not None:
        raise failure


def _policies(text: str | None, max_draft_tokens: int) -> list[str]:
    """The names of the policies, all of them checked before the first is played."""
    from smartspec.core.policy_names import TOLD, parse_policy

    if text is None:
        return [
            "off",
            *(["fixed:4"] if max_draft_tokens >= 4 else []),
            "goodput",
            "perfect-estimates",
        ]
    names = [name for given in policy_list(text) for name in _named(given, max_draft_tokens)]
    for name in names:
        if name not in TOLD:
            parse_policy(name, max_draft_tokens)
    return list(dict.fromkeys(names))


def _named(given: str, max_draft_tokens: int) -> list[str]:
    """The policies that all and field stand for; any other name as it is."""
    from smartspec.core.lab_tables import WHERE
    from smartspec.core.policy_names import TOLD, all_policies, published_policies

    if given not in ("all", "field"):
        return [given]
    published = list(published_policies())
    if given == "all":
        if not published:
            print(f"without the published methods: they are in {WHERE}", file=sys.stderr)
        return [*all_policies(max_draft_tokens), *TOLD]
    if not published:
        raise ValueError(f"policy 'field': the published methods are in {WHERE}")
    return published


def _report(outcomes: list["SimulationResult"], num_planned: int, output: Path | None) -> None:
    """Save at least one run if there is a place for it, then print. num_planned: runs that were to
    be made."""
    from smartspec.bench.report import run_json, write_json

    notes = _notes(outcomes, num_planned)
    # before the table, as its reader may stop early (`| head`); a failure here must not lose the
    # table
    try:
        if output is not None:
            runs = [
                run_json(outcome.settings, outcome.summary, outcome.run.records)
                for outcome in outcomes
            ]
            write_json(output, {"runs": runs})
            notes.append(f"saved to {output}")
    finally:
        _print(outcomes, notes)


def _print(outcomes: list["SimulationResult"], lines: list[str]) -> None:
    from rich.console import Console

    from smartspec.bench.comparison import comparison_table

    summaries = {}
    for outcome in outcomes:
        summaries.setdefault(_label(outcome), []).append(outcome.summary)
    console = Console()
    console.print(comparison_table(summaries, _title(outcomes[0].scenario)))
    num_row_steps = sum(outcome.run.totals.num_decode_rows for outcome in outcomes)
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
