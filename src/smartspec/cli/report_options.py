"""The options of `smartspec report`."""

from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated

import typer

from smartspec.cli.scenario_options import scenario_options

POLICIES = "off,fixed:3,goodput"
WORKLOADS = "chat,summarization,rag,code,editing,math,text-to-sql,long-context"
CONCURRENCY, REPETITIONS, MAX_TOKENS = "1,4,16", 5, 64
QUICK_WORKLOADS, QUICK_CONCURRENCY, QUICK_REPETITIONS, QUICK_MINUTES = (
    "chat,summarization,code,editing",
    "1,4",
    3,
    4.5,
)
QUICK_REQUESTS, QUICK_MAX_TOKENS = 4, 32
ACCEPTANCES = "0.5/8,0.7/8,0.9/8"
SIMULATED = (
    "hardware",
    "tensor_parallel",
    "draft_model",
    "prompt_tokens",
    "output_tokens",
    "max_draft_tokens",
)
COMPARED, LOADED, SIMULATION = "What is compared", "Workloads and loads", "Simulation"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The variants, workloads and loads to compare, the time for it, and the place of the
    results."""

    output: Annotated[
        Path, typer.Option(help="Folder of the page, of raw figures, and of what is not done yet.")
    ] = Path("report")
    quick: Annotated[
        bool, typer.Option("--quick", help="A first answer in under five minutes.")
    ] = False
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Begin nothing that ends later (default: none; 4.5 with --quick)."
        ),
    ] = None
    repetitions: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Of each cell (default 5; 3 with --quick). More may be added."
        ),
    ] = None
    subject: Annotated[
        str | None,
        typer.Option(help="The variant the others are compared with (default: that of goodput)."),
    ] = None
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of prompts, arrivals and sampled requests.")
    ] = 0

    policies: Annotated[
        str | None,
        typer.Option(
            help="Of started servers, separated by commas.",
            rich_help_panel=COMPARED,
            show_default=POLICIES,
        ),
    ] = None
    drafters: Annotated[
        str | None,
        typer.Option(
            help="Drafters to compare, separated by commas, several of one server by +: "
            "prompt-lookup+recycling,head. Default: those that a server starts with. Policy off "
            "has none. Simulated: model, head or lookup.",
            rich_help_panel=COMPARED,
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            help="As for serve, or for simulate (default: built in; 8b).", rich_help_panel=COMPARED
        ),
    ] = None
    serve_options: Annotated[
        str,
        typer.Option(
            help="More options of started servers, in one text.", rich_help_panel=COMPARED
        ),
    ] = ""
    base_url: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=URL of an OpenAI-compatible server that runs already; may be given several "
            "times. Then servers are started for --policies alone.",
            rich_help_panel=COMPARED,
        ),
    ] = None
    api_key: Annotated[
        str | None, typer.Option(help="Sent as a bearer token.", rich_help_panel=COMPARED)
    ] = None

    workloads: Annotated[
        str | None,
        typer.Option(
            help="Tasks of the prompts, separated by commas, or all.",
            rich_help_panel=LOADED,
            show_default=WORKLOADS,
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(
            help=(
                'Prompts of your own: a JSONL file of {"prompt", "task"} a line, or a folder of '
                "such files."
            ),
            rich_help_panel=LOADED,
        ),
    ] = None
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="Requests at once, of each workload; none for no closed loop.",
            rich_help_panel=LOADED,
            show_default=CONCURRENCY,
        ),
    ] = None
    rates: Annotated[
        str | None,
        typer.Option(help="Arrivals per second, separated by commas.", rich_help_panel=LOADED),
    ] = None
    cv: Annotated[
        str,
        typer.Option(
            help="Coefficient of variation of their gaps: 1 Poisson, 3 bursts.",
            rich_help_panel=LOADED,
        ),
    ] = "1"
    rate_workloads: Annotated[
        str,
        typer.Option(
            help="What arrives: mixed (all workloads by turns), each, or names.",
            rich_help_panel=LOADED,
        ),
    ] = "mixed"
    trace: Annotated[
        Path | None,
        typer.Option(
            help="CSV arrival_s,prompt_tokens,output_tokens: its first --seconds.",
            rich_help_panel=LOADED,
        ),
    ] = None
    time_scale: Annotated[
        float, typer.Option(help="Replay the trace this many times faster.", rich_help_panel=LOADED)
    ] = 1.0
    steps: Annotated[
        str | None,
        typer.Option(
            help="A rate and a workload that change: WORKLOAD:RATE:SECONDS, separated by commas.",
            rich_help_panel=LOADED,
        ),
    ] = None
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=1e6,
            help="During which requests arrive (default 20; simulated 60).",
            rich_help_panel=LOADED,
        ),
    ] = None
    requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=(
                "Of a run in a closed loop (default: twice those at once, at least 4; 4 with "
                "--quick)."
            ),
            rich_help_panel=LOADED,
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="New tokens per request (default 64; 32 with --quick).",
            rich_help_panel=LOADED,
        ),
    ] = None
    temperature: Annotated[
        float, typer.Option(min=0.0, max=1000.0, help="0 is greedy.", rich_help_panel=LOADED)
    ] = 0.0
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Never stop early, on servers that know ignore_eos.",
            rich_help_panel=LOADED,
        ),
    ] = False
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001, max=1e6, help="Seconds until a request failed.", rich_help_panel=LOADED
        ),
    ] = 120.0

    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate", help="In virtual time, on named hardware.", rich_help_panel=SIMULATION
        ),
    ] = False
    acceptances: Annotated[
        str,
        typer.Option(
            help="Workloads of a simulation, separated by commas: see simulate.",
            rich_help_panel=SIMULATION,
        ),
    ] = ACCEPTANCES
    controller_time: Annotated[
        str,
        typer.Option(
            help="The controller's own time: measured, or none.", rich_help_panel=SIMULATION
        ),
    ] = "measured"

    @property
    def repetitions_or_default(self) -> int:
        return self.repetitions or (QUICK_REPETITIONS if self.quick else REPETITIONS)

    @property
    def minutes_or_default(self) -> float | None:
        return self.minutes or (QUICK_MINUTES if self.quick else None)


def simulated_parameters() -> list[Parameter]:
    return scenario_options(*SIMULATED)
