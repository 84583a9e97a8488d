"""`smartspec report`: policies or servers under workloads and loads, measured, as one page."""

import shlex
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from smartspec.cli.options import command
from smartspec.cli.policy_list import policy_list

if TYPE_CHECKING:
    from smartspec.report.folder import Folder
    from smartspec.report.loads import Prompts
    from smartspec.report.matrix import Matrix, Variant
    from smartspec.report.running import Outcome

POLICIES = "off,fixed:3,goodput"


@dataclass(frozen=True)
class Effort:
    """What is measured where no option says it."""

    workloads: str
    concurrency: str
    repetitions: int
    minutes: float | None
    max_tokens: int
    requests: int | None  # of a run in a closed loop, see Matrix


WHOLE = Effort(
    "chat,summarization,rag,code,editing,math,text-to-sql,long-context", "1,4,16", 5, None, 64, None
)
QUICK = Effort("chat,summarization,code,editing", "1,4", 3, 4.5, 32, 4)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The variants, workloads and loads to compare, the time for it, and the place of the
    results."""

    output: Annotated[
        Path, Option(help="Folder of the page, of raw figures, and of what is not done yet.")
    ] = Path("report")
    quick: Annotated[bool, Option("--quick", help="A first answer in under five minutes.")] = False
    minutes: Annotated[
        float | None,
        Option(min=0.1, help="Begin nothing that ends later (default: none; 4.5 with --quick)."),
    ] = None
    repetitions: Annotated[
        int | None,
        Option(
            min=1, max=1000, help="Of each cell (default 5; 3 with --quick). More may be added."
        ),
    ] = None
    policies: Annotated[
        str | None, Option(help="Of started servers (a,b).", show_default=POLICIES)
    ] = None
    drafters: Annotated[
        str | None,
        Option(
            help="Drafters to compare (a,b), several of one server by +: "
            "prompt-lookup+recycling,head. Default: those that a server starts with. Policy off "
            "has none."
        ),
    ] = None
    model: Annotated[str | None, Option(help="As for serve (default: built in).")] = None
    serve_options: Annotated[str, Option(help="More options of started servers, in one text.")] = ""
    base_url: Annotated[
        list[str] | None,
        Option(
            help="NAME=URL of an OpenAI-compatible server that runs already; may be given several "
            "times. Then servers are started for --policies alone."
        ),
    ] = None
    api_key: Annotated[str | None, Option(help="Sent as a bearer token.")] = None
    workloads: Annotated[
        str | None,
        Option(help="Tasks of the prompts (a,b), or all.", show_default=WHOLE.workloads),
    ] = None
    prompts: Annotated[
        Path | None,
        Option(
            help='Prompts of your own: a JSONL file of {"prompt", "task"} a line, or a folder of '
            "such files."
        ),
    ] = None
    concurrency: Annotated[
        str | None,
        Option(
            help="Requests at once, of each workload; none for no closed loop.",
            show_default=WHOLE.concurrency,
        ),
    ] = None
    rates: Annotated[
        str | None,
        Option(help="Poisson arrivals per second (a,b), of all workloads by turns."),
    ] = None
    steps: Annotated[
        str | None,
        Option(
            help="A rate and a workload that change: WORKLOAD:RATE:SECONDS, separated by commas."
        ),
    ] = None
    seconds: Annotated[float, Option(min=1, max=1e6, help="During which requests arrive.")] = 20.0
    max_tokens: Annotated[
        int | None,
        Option(min=1, help="New tokens per request (default 64; 32 with --quick)."),
    ] = None
    timeout: Annotated[
        float, Option(min=0.001, max=1e6, help="Seconds until a request failed.")
    ] = 120.0

    @property
    def effort(self) -> Effort:
        return QUICK if self.quick else WHOLE


@command(Chosen)
def report(chosen: Chosen) -> None:
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

    began = time.monotonic()
    for name in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: started servers end with this process
        signal.signal(name, signal.default_int_handler)
    matrix, prompts = _matrix(chosen)
    folder = Folder.open(chosen.output, matrix, environment(), _command_line())
    outcome = _measure(chosen, matrix, prompts, folder, began)
    try:
        write_report(matrix, folder)
    except KeyboardInterrupt:  # the page takes seconds
        print(
            "interrupted: what was measured is kept, and the same command writes the page",
            file=sys.stderr,
        )
        raise Exit(130) from None
    _tell(folder, outcome)


def _matrix(chosen: Chosen) -> tuple["Matrix", "Prompts"]:
    """What is measured, and the prompts of each workload. ValueError naming the option that is
    wrong."""
    from hashlib import sha256

    from smartspec.report.matrix import Matrix
    from smartspec.report.options import cells_of, chosen_prompts

    default = chosen.effort.workloads if chosen.prompts is None else "all"
    prompts = chosen_prompts(chosen.prompts, chosen.workloads or default)
    texts = "\0".join(prompt.text for some in prompts.values() for prompt in some)
    settings = {
        "model": chosen.model,
        "serve_options": chosen.serve_options,
        "timeout": chosen.timeout,
        "prompts": "shipped" if chosen.prompts is None else chosen.prompts.name,
        "digest of the prompts": sha256(texts.encode()).hexdigest()[:12],
    }
    levels = chosen.effort.concurrency if chosen.concurrency is None else chosen.concurrency
    matrix = Matrix(
        tuple(_variants(chosen)),
        tuple(cells_of(list(prompts), levels, chosen.rates, chosen.steps)),
        chosen.max_tokens or chosen.effort.max_tokens,
        chosen.effort.requests,
        chosen.seconds,
        settings,
    )
    return matrix, prompts


def _variants(chosen: Chosen) -> list["Variant"]:
    from smartspec.report.options import running_server, started_variants

    running = [running_server(text) for text in chosen.base_url or ()]
    if not running or chosen.policies is not None:
        policies = policy_list(chosen.policies or POLICIES)
        return [*running, *started_variants(policies, chosen.drafters)]
    if chosen.drafters is not None:
        raise ValueError(
            f"--drafters {chosen.drafters} is for started servers: give --policies too"
        )
    return running


def _measure(
    chosen: Chosen, matrix: "Matrix", prompts: "Prompts", folder: "Folder", began: float
) -> "Outcome":
    """Nothing is started if nothing is missing."""
    from smartspec.cli.progress import progress
    from smartspec.report.live import ServerOptions, live_runs
    from smartspec.report.running import Outcome, run_matrix

    repetitions = chosen.repetitions or chosen.effort.repetitions
    minutes = chosen.minutes or chosen.effort.minutes
    deadline = None if minutes is None else began + 60 * minutes
    if not any(folder.missing(runs) for runs in matrix.rounds(repetitions)):
        return Outcome()
    more = tuple(shlex.split(chosen.serve_options))
    options = ServerOptions(chosen.model, more, chosen.api_key, chosen.timeout)
    try:
        with (
            progress() as bar,
            live_runs(matrix, prompts, options, folder.path, bar.show) as measure,
        ):
            return run_matrix(matrix, folder, repetitions, measure, bar.show, deadline=deadline)
    except KeyboardInterrupt:  # while servers start or stop
        return Outcome(is_interrupted=True)


def write_report(matrix: "Matrix", folder: "Folder") -> None:
    """The page and the summary of what the folder holds."""
    from smartspec.bench.report import write_json
    from smartspec.report.folder import PAGE, SUMMARY
    from smartspec.report.page import write_page
    from smartspec.report.results import Results, our_variant
    from smartspec.report.sections import sections_of

    results = Results(
        matrix,
        folder.valid(),
        folder.failed(),
        folder.environment,
        folder.command,
        our_variant(matrix),
    )
    write_page(folder.path / PAGE, "SmartSpec report", sections_of(results))
    write_json(folder.path / SUMMARY, results.to_json())


def _tell(folder: "Folder", outcome: "Outcome") -> None:
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
        raise Exit(130)
    if outcome.is_out_of_time:
        print("the time is over: what was measured is kept, and the same command goes on")
    if num_failed:
        raise Exit(1)


def _command_line() -> str:
    """The command as a person types it; a key is left out."""
    arguments = list(sys.argv[1:])
    for place, argument in enumerate(arguments):
        if argument == "--api-key" and place + 1 < len(arguments):
            arguments[place + 1] = "..."
        elif argument.startswith("--api-key="):
            arguments[place] = "--api-key=..."
    return shlex.join(["smartspec", *arguments])
