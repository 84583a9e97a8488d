"""What does our server withstand, and are sampled texts the same with drafts and without?

    python benchmarks/reliability.py stress
    python benchmarks/reliability.py stress --fuzzed 100000 --cancelled 10000 --soak-seconds 7200
    python benchmarks/reliability.py abuse
    python benchmarks/reliability.py page
    python benchmarks/reliability.py seeds --texts 2000
    python benchmarks/reliability.py seeds --texts 40 --model FOLDER --device cuda

Each starts a server of its own, but for seeds, which runs engines in this process.
"""

from pathlib import Path
from typing import Annotated

import typer
from lib import abuse as abuses
from lib import live_page
from lib.commands import application, run
from lib.stress import Load, broken_promises

from smartspec.engine.models.default_model import DEFAULT_MODEL

app = application(__doc__)


@app.command()
def stress(
    fuzzed: Annotated[int, typer.Option(min=10, help="Fuzzed requests.")] = 2000,
    cancelled: Annotated[
        int, typer.Option(min=10, help="Streams that are left at a random moment.")
    ] = 200,
    overload_seconds: Annotated[
        float,
        typer.Option(min=1, help="At three times the capacity; at least until the queue is full."),
    ] = 30.0,
    soak_seconds: Annotated[float, typer.Option(min=1, help="At 80 % of the capacity.")] = 60.0,
    policy: Annotated[str, typer.Option(help="Of the server.")] = "goodput",
    seed: int = 0,
    record: Annotated[
        Path | None, typer.Option(help="File that keeps what is done, to go on after an end.")
    ] = None,
) -> None:
    """Fuzzed requests, clients that leave, three times the server's capacity, long load.

    Prints a table for each part, at the end one for docs/results/reliability.md. With --record what
    is done is kept by tenths: a run that was interrupted goes on where it ended when it is called
    again.
    The promises: no answer of status 5xx but 503; nothing left in the engine when all is answered;
    memory constant after the first tenth. Under overload, some requests get 429 and the others have
    bounded times. Exit status 1 if one is broken.
    """
    if broken_promises(
        Load(fuzzed, cancelled, overload_seconds, soak_seconds), policy, seed, record
    ):
        raise typer.Exit(1)


@app.command()
def abuse(
    times: Annotated[int, typer.Option(min=1, help="How often each body is sent.")] = 5,
) -> None:
    """One user against all others: the longest answer of `/health` while a server is abused, and a
    stream in a crowd.

    `/health` is called every 5 ms. The promise is that no abuse makes it wait longer than 100 ms.
    The last line is the wait for the first token of one request beside 500 from another address.
    """
    abuses.report(times)


@app.command()
def page(
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of measurements.")] = 10,
    clients: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 4,
    policy: Annotated[str, typer.Option(help="Of the server.")] = "goodput",
) -> None:
    """Tokens per second with the live page's events read, and without, in turn.

    One server, closed loops of equal requests, rounds alternating; the promise is a median ratio
    above 0.99.
    """
    live_page.report(rounds, clients, policy)


@app.command()
def seeds(
    texts: Annotated[int, typer.Option(min=1)] = 2000,
    max_tokens: Annotated[int, typer.Option(min=1)] = 32,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once without drafts.")] = 32,
    model: Annotated[str, typer.Option()] = DEFAULT_MODEL,
    device: Annotated[str, typer.Option()] = "auto",
    dtype: Annotated[str, typer.Option()] = "auto",
) -> None:
    """How many sampled texts with a seed differ between plain decoding and decoding with drafts:
    none, by our kernels.

    Each text has a seed of its own, one of the prompts, and one of the penalties, under which
    distributions are flat: a difference in the last digits of the logits shows soon. The runs with
    drafts share the texts among them, so these have other neighbours than in plain decoding. Of a
    text that differs it says where. Exit status 1 if any does.
    """
    from lib.seeds import count_differing

    if count_differing(texts, max_tokens, concurrency, model, device, dtype):
        raise typer.Exit(1)


if __name__ == "__main__":
    run(app)
