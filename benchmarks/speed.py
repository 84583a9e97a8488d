"""How fast is our engine by task, load and length of text, and our server by arrival rate?

    python benchmarks/speed.py tasks --quantization none --prompts FOLDER --folder build/task-speed
    python benchmarks/speed.py contexts --drafters lab.drafters.self_draft:SelfDraft:256
    python benchmarks/speed.py prediction
    python benchmarks/speed.py rates --rates 0.3,0.6,1,1.5,2,3 --output rates.json --plot rates.png

tasks and rates compare policies, and go on from what is kept of an earlier run.
"""

from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from lib.commands import (
    MIXED,
    SHIPPED_TASKS,
    PromptsPath,
    application,
    check_task,
    prompts_by_task,
    run,
)
from lib.rates import Cells, load_plan, report
from lib.servers import running, server_command

app = application(__doc__)


@app.command()
def tasks(
    policies: Annotated[
        str, typer.Option(help="off first, separated by commas; goodput-chains too.")
    ] = ("off,goodput,goodput-chains,fixed:3,eagle2:8"),
    concurrency: Annotated[
        str, typer.Option(help="Requests at once, separated by commas.")
    ] = "1,4,8,16,32",
    drafter: Annotated[
        str, typer.Option(help="As in `smartspec serve`.")
    ] = "prompt-lookup,recycling,head",
    quantization: Annotated[str, typer.Option(help="As in `smartspec serve`.")] = "auto",
    prompts: PromptsPath = None,
    tasks: Annotated[str | None, typer.Option(help="Separated by commas (default: all).")] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Decoding requests of a policy's steps, summed, of a cell.")
    ] = 600,
    parts: Annotated[int, typer.Option(min=2, help="Of a cell.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens per request.")] = 64,
    temperature: Annotated[float, typer.Option(help="0: greedy.", min=0.0)] = 0.0,
    folder: Annotated[Path, typer.Option(help="Where cells are kept.")] = Path("build/task-speed"),
) -> None:
    """Tokens per second by task and load, of policies against off, on the live engine.

    One engine per policy in this process, no HTTP; they take turns step by step, so that all see
    the same machine. The next prompt replaces a request that ends, so the load is constant. Steps
    without prefill count.

    Policies are those of `smartspec serve`; goodput-chains is goodput that drafts no trees. A cell,
    a task and a number of requests at once, is measured in --parts; the ratio to off is that of all
    of them, in brackets the least and the largest of a part.
    """
    from lib import task_speed

    names, by_task = policies.split(","), prompts_by_task(prompts)
    if names[0] != "off" or len(names) < 2:
        raise ValueError(f"--policies {policies}: name off first and another one after it")
    chosen = tasks.split(",") if tasks else [task for task in by_task if task != MIXED]
    settings = {
        "policies": names,
        "drafter": drafter,
        "quantization": quantization,
        "prompts": str(prompts),
    }
    settings |= {"rows": rows, "parts": parts, "max_tokens": max_tokens, "temperature": temperature}
    levels = [int(level) for level in concurrency.split(",")]
    task_speed.compare(settings, {task: by_task[task] for task in chosen}, levels, folder)


@app.command()
def contexts(
    drafters: Annotated[
        list[str], typer.Option(help="As in `smartspec serve`; give it several times.")
    ],
    contexts: Annotated[
        str, typer.Option(help="Tokens of a prompt, separated by commas.")
    ] = "1024,2048,4096,8000",
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 1,
    prompts: PromptsPath = None,
    task: Annotated[str, typer.Option(help="Whose prompts are joined to long texts.")] = MIXED,
    quantization: Annotated[str, typer.Option(help="As in `smartspec serve`.")] = "auto",
    rows: Annotated[
        int, typer.Option(min=1, help="Decoding requests of an engine's steps, summed, of a cell.")
    ] = 400,
    parts: Annotated[int, typer.Option(min=2, help="Of a cell.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens per request.")] = 128,
    temperature: Annotated[float, typer.Option(help="0: greedy.", min=0.0)] = 0.0,
) -> None:
    """Tokens per second after long texts, of drafters against off, on the live engine.

    Engines take turns as in `tasks`. Requests are questions about the same documents.
    """
    from lib import long_contexts

    by_task = prompts_by_task(prompts)
    check_task(task, by_task)
    settings = {"rows": rows, "parts": parts, "max_tokens": max_tokens, "temperature": temperature}
    settings |= {"quantization": quantization}
    sizes = [int(size) for size in contexts.split(",")]
    long_contexts.compare(drafters, sizes, concurrency, by_task[task], settings)


@app.command()
def prediction(
    rounds: Annotated[int, typer.Option(min=1, help="Answers of each way.")] = 3,
    max_tokens: Annotated[
        int | None, typer.Option(min=8, help="New tokens (default: those of the file).")
    ] = None,
    max_draft_tokens: Annotated[int, typer.Option(min=1, help="As in `smartspec serve`.")] = 10,
    quantization: Annotated[str, typer.Option(help="As in `smartspec serve`.")] = "auto",
) -> None:
    """Seconds to write a file of 200 lines again, a word of every tenth line changed, its old text
    as prediction.

    One request at a time, greedy, on the live engine; plain decoding and the ways to draft take
    turns. The edited file is forced: the target computes every pass, then the next token of that
    file is its likeliest one, as a model as small as the default edits no file. Medians of rounds,
    in brackets the least and the largest.
    """
    from lib import predicted_edit

    predicted_edit.compare(rounds, max_tokens, max_draft_tokens, quantization)


@app.command()
def rates(
    policies: Annotated[str, typer.Option(help="Ours first, then what it is compared with.")] = (
        "goodput,off,fixed:1,fixed:2,fixed:3,fixed:5"
    ),
    rates: Annotated[str, typer.Option(help="Requests per second.")] = "0.3,0.6,1,1.5,2,3",
    seconds: Annotated[float, typer.Option(min=1, help="Length of a round.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each rate.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens per request.")] = 64,
    task: Annotated[
        str, typer.Option(help=f"Of the prompts; of smartspec's: {SHIPPED_TASKS}.")
    ] = MIXED,
    prompts: PromptsPath = None,
    output: Annotated[Path, typer.Option(help="JSON file to write, or to continue.")] = Path(
        "rates.json"
    ),
    plot: Annotated[Path | None, typer.Option(help="PNG to draw.")] = None,
) -> None:
    """Mean latency over Poisson arrival rates of our server, policies side by side.

    All servers are up at once but only one works at a time: for every rate and round, each server
    in turn gets the same requests at the same moments. The order is first to last, then last to
    first. Servers are started anew for every round: two processes of one program differ in speed by
    1 to 2 % for as long as they live, because their memory pages differ. Each request has a
    cache_salt of its own, so that none finds prefixes or answers of another.

    The table gives the mean end-to-end latency of each policy and, as noise, the lowest and highest
    ratio to goodput's of a single round.
    """
    names, by_task = policies.split(","), prompts_by_task(prompts)
    check_task(task, by_task)
    cells = Cells.read(output)
    for number, of_round in groupby(cells.missing(rates, rounds), key=lambda cell: cell[0]):
        with ExitStack() as stack:
            logs, targets = Path(stack.enter_context(TemporaryDirectory(prefix="rates-"))), {}
            for name in names:
                print(f"starting {name}", flush=True)
                command = server_command(name, None, None)
                targets[name] = stack.enter_context(running(command, logs / f"{len(targets)}.log"))
            for _, rate in of_round:
                plan = load_plan(by_task[task], rate, seconds, max_tokens, seed=number)
                cells.measure(number, targets, plan, rate)
    report(cells.found, names, plot)


if __name__ == "__main__":
    run(app)
