"""`smartspec simulate`: policies compared in virtual time, on named hardware."""

import os
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smartspec.cli.options import command
from smartspec.cli.output_files import check_output, check_plot
from smartspec.cli.policy_list import policy_list
from smartspec.cli.runs import play
from smartspec.cli.scenario_options import scenario_options, settings_of
from smartspec.cli.simulate_report import report

if TYPE_CHECKING:
    from smartspec.sim.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The runs to make of a scenario, and the place of their results."""

    policy: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare, separated by commas, module:Class too; field: the published "
            "ones, which are in the repository's lab; all: every one there is; perfect-estimates "
            "and perfect-outcomes are told the ground truth.",
            show_default="off,fixed:4,goodput,perfect-estimates",
        ),
    ] = None
    controller_time: Annotated[
        str,
        typer.Option(
            help="The controller's own time per step: measured on this machine before the runs, "
            "none, or what the runs in a JSON file of an earlier --output were charged."
        ),
    ] = "measured"
    card: Annotated[
        Path | None,
        typer.Option(
            help="Play a card (docs/observe.md): its step times, drafter and acceptance take the "
            "place of --hardware, --drafter, --max-draft-tokens and, unless that is given, "
            "--acceptance."
        ),
    ] = None
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy.")] = 1
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0
    processes: Annotated[int, typer.Option(min=1, help="Runs that execute at the same time.")] = 1
    output: Annotated[
        Path | None, typer.Option(help="Save settings, summaries and every request as JSON.")
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the distributions of latency: .png, .pdf, .svg or .jpg."),
    ] = None

    def check_files(self) -> None:
        """ValueError naming a file that could not be written."""
        if self.output is not None:
            check_output("--output", self.output)
        if self.plot is not None:
            check_plot("--plot", self.plot)
        paths = [os.path.realpath(path) for path in (self.output, self.plot) if path is not None]
        if len(set(paths)) < len(paths):
            raise ValueError(f"--output and --plot are both {self.output}: name two files")


@command(Comparison, scenario_options())
def simulate(compared: Comparison, **given) -> None:
    """Compare policies under the same requests and random numbers; give one of --rate, --trace and
    --batch.

    Time and acceptance are computed instead of run; scheduler, step loop and controller are those
    of the engine. Ctrl-C reports and saves what there is by then. Exit codes: 130 after Ctrl-C, 1
    if a process was killed.

    Example: smartspec simulate --hardware h100 --model 70b --tensor-parallel 4 --rate 4 --seeds 3
    """
    from smartspec.sim.scenario import Scenario

    compared.check_files()
    settings = settings_of(given)
    if compared.card is not None:
        from smartspec.sim.card_settings import with_card

        settings = with_card(settings, compared.card)
    names = _policies(compared.policy, settings["max_draft_tokens"])
    planned = [Scenario(policy=name, seed=compared.seed, **settings) for name in names]
    charged = _controller_seconds(compared.controller_time, planned)
    scenarios = [
        replace(scenario, seed=compared.seed + i)
        for i in range(compared.seeds)
        for scenario in charged
    ]
    outcomes, failure = play(scenarios, compared.processes)
    if outcomes:
        report(outcomes, len(scenarios), compared.output, compared.plot)
    if isinstance(failure, KeyboardInterrupt):
        raise typer.Exit(130)
    if isinstance(failure, BrokenProcessPool):
        print(
            "error: a process was killed, maybe for want of memory: give fewer --processes",
            file=sys.stderr,
        )
        raise typer.Exit(1)
    if failure is not None:
        raise failure


def _controller_seconds(controller_time: str, scenarios: list["Scenario"]) -> list["Scenario"]:
    """The scenarios, one for each policy, with what is charged of the controller's time."""
    from smartspec.sim.controller_time import measured_controller_seconds, read_controller_seconds

    if controller_time == "none":
        return scenarios
    if controller_time == "measured":
        return [
            replace(scenario, controller_seconds=measured_controller_seconds(scenario))
            for scenario in scenarios
        ]
    known = read_controller_seconds(Path(controller_time))
    missing = [scenario.policy for scenario in scenarios if scenario.policy not in known]
    if missing:
        raise ValueError(
            f"--controller-time {controller_time} has no run of {', '.join(missing)}: use measured "
            "or none"
        )
    return [replace(scenario, controller_seconds=known[scenario.policy]) for scenario in scenarios]


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
