"""`smartspec doctor`: one screen for an operator: kernels, what the profile says, which drafts pay,
what to change."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from smartspec.cli.engine_options import engine_config_of
from smartspec.cli.options import command

if TYPE_CHECKING:
    from smartspec.engine.runtime.advice import Load

LOADS = (1, 2, 4, 8, 16, 32, 64, 128)  # requests at once
CONTEXT = 256  # tokens of a request
LEGEND = """ms per draft token: what a step takes longer for each draft token that the model checks.
{kinds}: drafts of this kind make answers faster if more than this share of their tokens is accepted.
A running server measures what is accepted (its page /, or /v1/speculation), and drafts only where it pays."""  # noqa: E501


@dataclass(frozen=True)
class DoctorOptions:
    """Options of `smartspec doctor`, as those of serve. url: nothing is loaded, the others are not
    used."""

    url: Annotated[str | None, Option(help="A running server, to look at that one instead.")] = None
    api_key: Annotated[str | None, Option(help="Of the server at --url.")] = None
    model: Annotated[str | None, Option(help="Name, Hugging Face id, folder or GGUF file.")] = None
    drafter: Annotated[str | None, Option(help="As in serve (default: the model's).")] = None
    quantization: Annotated[str, Option(help="auto, none, int8 or int4; see serve.")] = "auto"
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto"
    max_batch: Annotated[int, Option(help="Requests that run at once.", min=1)] = 32


@command(DoctorOptions)
def doctor(options: DoctorOptions) -> None:
    """Show kernels, what a step and a verified token cost, from which acceptance drafts pay, and
    what to change."""
    if options.url is not None:
        from smartspec.cli.doctor_server import show_server

        _print_advice(show_server(options.url, options.api_key))
        return
    from smartspec.engine.runtime.advice import advice_on, advice_on_threads, load_of
    from smartspec.engine.runtime.build import load_models, profiled_latency
    from smartspec.engine.runtime.kernel_report import kernel_report

    config = engine_config_of(options)
    models = load_models(config)
    latency = models.by_drafter(profiled_latency(models.profiled(config.max_batch), print))
    specs = tuple(drafter.spec for drafter in models.drafters)
    latency.use_drafters(specs)
    kernels = kernel_report(models.target.loaded)
    loads = [load_of(latency, specs, n, CONTEXT) for n in LOADS if n <= config.max_batch]
    print(f"{config.model} with drafters {', '.join(config.drafters) or 'none'}")
    for name, about in kernels.items():
        print(f"  {name}: {about}")
    _print_loads(loads)
    num_cores = os.cpu_count() or 1
    num_threads = int(os.environ.get("OMP_NUM_THREADS") or num_cores)
    advice = [*advice_on(kernels, loads), *advice_on_threads(num_threads, num_cores)]
    _print_advice(advice)


def _print_advice(advice: Sequence[str]) -> None:
    print("What to change:" if advice else "Nothing to change.")
    for line in advice:
        print(f"  * {line}")


def _print_loads(loads: Sequence["Load"]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    kinds = list(loads[0].pays_from)
    headings = ("requests at once", "steps/s", "tokens/s, no drafts", "ms per draft token", *kinds)
    table = Table(
        *headings, box=SIMPLE, title=f"What this machine can do, at {CONTEXT} tokens of context"
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
