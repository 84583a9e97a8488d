"""`smartspec doctor`: one screen for an operator: kernels, what the profile says, which drafts pay,
what to change."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from smartspec.cli.engine_options import engine_config_of
from smartspec.cli.options import command

if TYPE_CHECKING:
    from smartspec.control.latency.model import LatencyModel
    from smartspec.control.records import DrafterSpec

LOADS = (1, 2, 4, 8, 16, 32, 64, 128)  # requests at once
DEAR = 0.9  # acceptance that drafts hardly have
MODEL_FREE = "without a model"
LEGEND = """ms per draft token: what a step takes longer for each draft token that the model checks.
{kinds}: drafts of this kind make answers faster if more than this share of their tokens is accepted.
A running server measures what is accepted (its page /, or /v1/speculation), and drafts only where it pays."""  # noqa: E501


@dataclass(frozen=True)
class DoctorOptions:
    """Options of `smartspec doctor`, as those of serve. url: nothing is loaded, the others are not
    used."""

    url: Annotated[
        str | None, typer.Option(help="A running server, to look at that one instead.")
    ] = None
    api_key: Annotated[str | None, typer.Option(help="Of the server at --url.")] = None
    model: Annotated[
        str | None, typer.Option(help="Name, Hugging Face id, folder or GGUF file.")
    ] = None
    drafter: Annotated[str | None, typer.Option(help="As in serve (default: the model's).")] = None
    quantization: Annotated[str, typer.Option(help="auto, none, int8 or int4; see serve.")] = "auto"
    activations: Annotated[str, typer.Option(help="auto, int8 or fp32; see serve.")] = "auto"
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto"
    max_batch: Annotated[int, typer.Option(help="Requests that run at once.", min=1)] = 32
    context: Annotated[int, typer.Option(help="Tokens of a request.", min=1)] = 256


@dataclass(frozen=True)
class Load:
    """The profile's view of so many requests at once."""

    requests: int
    seconds: float  # of a step without drafts
    # seconds that the first draft token of every request adds to it, divided by their number
    price: float
    # by kind of drafter, acceptance of a draft token from which it pays
    pays_from: dict[str, float]


@command(DoctorOptions)
def doctor(options: DoctorOptions) -> None:
    """Show kernels, what a step and a verified token cost, from which acceptance drafts pay, and
    what to change."""
    if options.url is not None:
        from smartspec.cli.doctor_server import show_server

        _print_advice(show_server(options.url, options.api_key))
        return
    from smartspec.engine.runtime.build import load_models, profiled_latency
    from smartspec.engine.runtime.kernel_report import kernel_report

    config = engine_config_of(options)
    models = load_models(config)
    limits = {"max_batch": config.max_batch, "kv_tokens": models.kv_tokens}
    latency = models.by_drafter(
        profiled_latency(models.target, models.profiled, **limits, report=print)
    )
    specs = tuple(drafter.spec for drafter in models.drafters)
    latency.use_drafters(specs)
    kernels = kernel_report(models.target.loaded)
    loads = [load_of(latency, specs, n, options.context) for n in LOADS if n <= config.max_batch]
    print(f"{config.model} with drafters {', '.join(config.drafters) or 'none'}")
    for name, about in kernels.items():
        print(f"  {name}: {about}")
    _print_loads(loads, options.context)
    num_cores = os.cpu_count() or 1
    num_threads = int(os.environ.get("OMP_NUM_THREADS") or num_cores)
    advice = [*advice_on(kernels, loads), *advice_on_threads(num_threads, num_cores)]
    _print_advice(advice)


def _print_advice(advice: Sequence[str]) -> None:
    print("What to change:" if advice else "Nothing to change.")
    for line in advice:
        print(f"  * {line}")


def load_of(
    latency: "LatencyModel", drafters: "Sequence[DrafterSpec]", requests: int, context: int
) -> Load:
    """The load by the profile, at that context."""
    import numpy as np

    from smartspec.control.records import BatchView, DrafterView

    zeros = np.zeros(requests, dtype=np.int64)
    found = tuple(DrafterView(zeros + 1) for _ in drafters)
    view = BatchView(np.arange(requests), zeros + context, zeros + 1, found)
    plain, with_drafts = latency.target_seconds(view, np.array([0, requests])).tolist()
    passes = {
        spec.name: float(latency.draft_seconds(view, zeros + number, 1)[number, 1])
        for number, spec in enumerate(drafters)
        if spec.has_passes
    }
    if len(passes) < len(drafters):
        passes = {MODEL_FREE: 0.0} | passes
    pays_from = {name: (with_drafts - plain + seconds) / plain for name, seconds in passes.items()}
    return Load(requests, plain, (with_drafts - plain) / requests, pays_from)


def advice_on(kernels: dict[str, str], loads: Sequence[Load]) -> list[str]:
    """The changes that an operator may make, and what the policy does by itself."""
    found = [
        f"{name} runs in torch ({about.removeprefix('torch' + chr(39) + 's, because ')}): "
        "where it can, our kernel is several times as fast"
        for name, about in kernels.items()
        if about.startswith("torch's")
    ]
    for name in loads[0].pays_from if loads else ():
        dear = [load.requests for load in loads if load.pays_from[name] > DEAR]
        if dear and dear[0] == loads[0].requests:
            found.append(
                f"drafts {_kind(name)} hardly ever pay on this machine: leave them out, or use "
                "--policy off"
            )
        elif dear:
            found.append(
                f"drafts {_kind(name)} pay up to about {dear[0] // 2} requests at once; beyond, "
                "goodput makes few by itself, and a fixed length would lose"
            )
    return found


def advice_on_threads(num_threads: int, num_cores: int) -> list[str]:
    """num_cores: as the operating system counts them."""
    if num_threads > num_cores:
        return [f"{num_threads} threads share {num_cores} cores: set OMP_NUM_THREADS={num_cores}"]
    if num_threads < num_cores // 2:
        return [
            f"{num_threads} of {num_cores} cores compute: set OMP_NUM_THREADS to the number of "
            "physical cores"
        ]
    return []


def _kind(name: str) -> str:
    return name if name == MODEL_FREE else f"of {name}"


def _print_loads(loads: Sequence[Load], context: int) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    kinds = list(loads[0].pays_from)
    headings = ("requests at once", "steps/s", "tokens/s, no drafts", "ms per draft token", *kinds)
    table = Table(
        *headings, box=SIMPLE, title=f"What this machine can do, at {context} tokens of context"
    )
    for load in loads:
        pays = [f"{value:.2f}" if value < 1 else "never" for value in load.pays_from.values()]
        speed = (
            f"{1 / load.seconds:.1f}",
            f"{load.requests / load.seconds:.0f}",
            f"{1000 * load.price:.2f}",
        )
        table.add_row(str(load.requests), *speed, *pays)
    Console().print(table)
    print(LEGEND.format(kinds=" and ".join(f"'{kind}'" for kind in kinds)))
