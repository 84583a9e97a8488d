"""`smartspec bench`: measure a running OpenAI-compatible server, ours or any other."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from smartspec.cli.options import command
from smartspec.cli.output_files import check_output

if TYPE_CHECKING:
    from smartspec.workload.summary import Summary

MAX_TARGET_MS = 3.6e6  # an hour, as our server


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The requests to send, their server, and the place of the figures."""

    base_url: Annotated[str, Option(help="The server, for example http://127.0.0.1:8000.")]
    prompts: Annotated[
        Path | None,
        Option(
            help='JSONL file, one {"prompt": ...} a line, or a folder of such files; `id` and `task` are kept. '  # noqa: E501
            "Default: the prompts that come with smartspec."
        ),
    ] = None
    concurrency: Annotated[
        int | None,
        Option(min=1, help="Number of requests under way at all times (default 1)."),
    ] = None
    rate: Annotated[float | None, Option(help="Poisson arrivals, requests per second.")] = None
    trace: Annotated[
        Path | None,
        Option(
            help="Replay a CSV arrival_s,prompt_tokens,output_tokens: its arrival times and output "
            "lengths; the longer prompts of the file go to its rows with longer prompts."
        ),
    ] = None
    num_prompts: Annotated[
        int | None,
        Option(min=1, help="Requests to send (default: every prompt, or trace row, once)."),
    ] = None
    max_tokens: Annotated[
        int | None,
        Option(
            min=1, help="New tokens per request (default 64; with a trace, a cap on its lengths)."
        ),
    ] = None
    temperature: Annotated[float, Option(min=0.0, max=1000.0, help="0 is greedy.")] = 0.0
    seed: Annotated[
        int, Option(min=0, help="Seed of prompt order, arrivals and sampled requests.")
    ] = 0
    output: Annotated[
        Path | None, Option(help="Save settings, summary and every request as JSON.")
    ] = None
    model: Annotated[str | None, Option(help="Model name (default: the server's first).")] = None
    chat: Annotated[
        bool, Option(help="Chat completions, or plain completions of the raw prompt.")
    ] = True
    ignore_eos: Annotated[
        bool, Option(help="Never stop early, on servers that know ignore_eos.")
    ] = False
    tpot_target_ms: Annotated[
        float | None,
        Option(
            min=0.01,
            max=MAX_TARGET_MS,
            help="Wanted milliseconds per output token; our server is told.",
        ),
    ] = None
    ttft_target_ms: Annotated[
        float | None,
        Option(
            min=0.01,
            max=MAX_TARGET_MS,
            help="Wanted milliseconds to the first token; our server is told.",
        ),
    ] = None
    time_scale: Annotated[float, Option(help="Replay the trace this many times faster.")] = 1.0
    timeout: Annotated[
        float, Option(min=0.001, max=1e6, help="Seconds until a request counts as failed.")
    ] = 600.0
    api_key: Annotated[str | None, Option(help="Sent as a bearer token.")] = None


@command(Measurement)
def bench(options: Measurement) -> None:
    """Send prompts to a server; print TTFT, TPOT, end-to-end latency, throughput and, for our
    server, acceptance.

    Prompts come in an order drawn from --seed. Ctrl-C reports and saves what has finished by then.
    Exit code 1: no request completed.
    """
    from dataclasses import asdict, fields
    from datetime import UTC, datetime

    from smartspec.bench.client import Target
    from smartspec.bench.probe import find_model, normalize_base_url, read_policy
    from smartspec.bench.report import progress_bar, run_json, write_json
    from smartspec.bench.run import LoadSettings, measure, plan_load

    given = {field.name: getattr(options, field.name) for field in fields(LoadSettings)}
    load = LoadSettings(
        **{n: str(value) if isinstance(value, Path) else value for n, value in given.items()}
    )
    plan = plan_load(load)
    if options.output is not None:
        check_output("--output", options.output)
    url = normalize_base_url(options.base_url)
    model = find_model(url, options.model, options.api_key)
    policy = read_policy(url, options.api_key)
    target = Target(
        url,
        model,
        options.api_key,
        options.chat,
        options.temperature,
        options.ignore_eos,
        options.timeout,
        options.tpot_target_ms and options.tpot_target_ms / 1000,
        options.ttft_target_ms and options.ttft_target_ms / 1000,
        sends_targets=policy is not None,
    )
    settings = asdict(load) | asdict(target) | {"policy": policy}
    del settings["api_key"]
    settings["started"] = datetime.now(UTC).isoformat(timespec="seconds")
    with progress_bar(len(plan.requests)) as on_record:
        records, summary = measure(target, plan, on_record)
    if options.output is not None:
        write_json(options.output, run_json(settings, summary, records))
    _print(settings, summary, options.output)
    if not summary.num_completed:
        raise Exit(1)


def _print(settings: dict, summary: "Summary", output: Path | None) -> None:
    from rich.console import Console

    from smartspec.bench.report import latency_table, notes, throughput_table

    console = Console()
    policy = f", policy {settings['policy']}" if settings["policy"] else ""
    console.print(
        f"{settings['base_url']}, model {settings['model']}{policy}", markup=False, highlight=False
    )
    console.print(latency_table(summary))
    console.print(throughput_table(summary))
    for line in notes(summary):
        console.print(line, markup=False, highlight=False)
    if output is not None:
        console.print(f"saved to {output}", markup=False, highlight=False)
