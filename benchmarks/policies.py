"""Which policy wins?

All of it is simulated: recorded traffic, each mechanism of goodput off alone, and draft trees.
`profile` reads logs of a live engine too.

    python benchmarks/policies.py ablation --traces FOLDER --results docs/results
    python benchmarks/policies.py traces --traces FOLDER --results lab/results
    python benchmarks/policies.py profile --acceptance 0.7/8 --output profile.json
    python benchmarks/policies.py gpu --policies uniform:1,3,5,fixed:3
    python benchmarks/policies.py insurance --cases changes,search --policies goodput,sglang-ema
    python benchmarks/policies.py trees --models 8b --batches 1,8,64 --later-child-share 0.1
"""

from pathlib import Path
from typing import Annotated, Literal

import typer
from lib import hosts as host_lengths
from lib import mixtures as mixture_lengths
from lib import profiling_run, simulated_trees, trace_pages, trace_tables
from lib.commands import application, run
from lib.gpu_replay.cells import cells_of, play_cells
from lib.gpu_replay.page import cells_table, page, summary_table
from lib.gpu_replay.step_times import CARDS
from lib.insurance import cases_of, insurance_page, play_cases, rows_table
from lib.trace_scenarios import TRACES, ablation_jobs, trace_cases, trace_jobs

from smartspec.bench.report import write_json
from smartspec.cli.policy_list import policy_list
from smartspec.sim.scenario import Scenario
from smartspec.sim.settings import LATER_CHILD_SHARE

Folder = Annotated[
    Path, typer.Option(exists=True, file_okay=False, help=f"folder of {', '.join(TRACES)}")
]
Half = Annotated[
    Literal["choose", "report"],
    typer.Option(help="of each recording's time: the first or the second"),
]
Processes = Annotated[int, typer.Option(min=1, help="worker processes")]
RunsFile = Annotated[Path, typer.Option(help="one JSON line per run; continued if it exists")]
NumWindows = Annotated[int, typer.Option("--windows", min=1, help="Of each case.")]
Results = Annotated[Path, typer.Option(help="folder of the JSON and the page")]
app = application(__doc__)


@app.command()
def ablation(
    traces: Folder,
    half: Half = "report",
    windows: NumWindows = 5,
    processes: Processes = 2,
    runs: RunsFile = Path("trace_runs.jsonl"),
    results: Results = Path("trace_results"),
) -> None:
    """What each mechanism of goodput brings, on recorded traffic: docs/results/ablation.md.

    The folder's files have the columns arrival_s, prompt_tokens and output_tokens. Every recording
    is split in time: the first half is for choosing constants, the second for reporting. Ctrl-C
    loses only the runs under way.
    """
    known = trace_tables.finished_runs(list(ablation_jobs(windows)), runs, traces, half, processes)
    about = trace_tables.about(known, "ablation", half, f" --windows {windows}")
    data = about | trace_tables.ablation(known, windows)
    trace_tables.write(results, "ablation", data, trace_pages.ablation_page(data))


@app.command()
def traces(
    traces: Folder,
    half: Half = "report",
    processes: Processes = 2,
    runs: RunsFile = Path("trace_runs.jsonl"),
    results: Results = Path("trace_results"),
    windows: NumWindows = 3,
    cases: Annotated[
        str, typer.Option(help="Only those that begin so, separated by semicolons: 8B, Azure;70B")
    ] = "",
) -> None:
    """All policies on recorded traffic: lab/results/traces.md. Folder and runs are those of
    `ablation`."""
    played = trace_cases(cases)
    known = trace_tables.finished_runs(
        list(trace_jobs(windows, played)), runs, traces, half, processes
    )
    options = f" --windows {windows}" + (f' --cases "{cases}"' if cases else "")
    data = trace_tables.about(known, "traces", half, options) | trace_tables.trace_table(
        known, windows, played
    )
    trace_tables.write(results, "traces", data, trace_pages.traces_page(data))


@app.command()
def profile(
    logs: Annotated[
        list[Path] | None, typer.Argument(help="Decision logs of a live engine.", exists=True)
    ] = None,
    model: Annotated[str, typer.Option(help="Of the simulated run: 8b, 70b or a shape.")] = "8b",
    drafter: Annotated[
        str, typer.Option(help="Of the simulated run: model, head or lookup.")
    ] = "model",
    acceptance: Annotated[
        str, typer.Option(help="Of the simulated run, as for `smartspec simulate`.")
    ] = "0.7/8",
    max_draft_tokens: Annotated[
        int, typer.Option(help="Longest draft of the simulated run.", min=1)
    ] = 8,
    output: Annotated[Path, typer.Option(help="JSON file to write.")] = Path("profile.json"),
) -> None:
    """A profiling run for `--policy batch-table:FILE` and `sequoia:FILE`: the best draft length by
    number of requests, and acceptance by child rank.

    From decision logs (`smartspec serve --policy fixed:3 --decision-log FILE`, one run for each
    length), or from simulated steady batches if there are none.
    """
    tensor_parallel = simulated_trees.DEVICES.get(model, 1)
    shape = {"model": model, "tensor_parallel": tensor_parallel, "drafter": drafter}
    scenario = Scenario(batch=1, acceptance=acceptance, max_draft_tokens=max_draft_tokens, **shape)
    found = profiling_run.profile_of(
        profiling_run.recorded(logs) if logs else profiling_run.simulated(scenario)
    )
    write_json(output, found)
    typer.echo(f"{output}: {found}")


@app.command()
def mixtures(
    accelerator: Annotated[
        str, typer.Option(help="As --hardware of `smartspec simulate`.")
    ] = "h100",
    acceptance: Annotated[float, typer.Option(help="Of a draft token.", min=0, max=1)] = 0.7,
    max_length: Annotated[int, typer.Option(help="Longest draft.", min=1)] = 8,
    batches: Annotated[
        str, typer.Option(help="Requests under way.")
    ] = "1,2,4,8,16,32,64,128,256,512",
) -> None:
    """The best draft length on mixtures of experts and on dense models of their active size:
    lab/results/mixtures.md.

    A pass over n tokens reads E (1 - (1 - k/E)^n) of E experts. Drafts cost nothing. No policy
    plays: these are the lengths that one would have to find.
    """
    sizes = [int(size) for size in batches.split(",")]
    rows = mixture_lengths.rows_of(accelerator, acceptance, max_length, sizes)
    cells = [[row["model"], row["kind"], *row["best"].values()] for row in rows]
    typer.echo(trace_pages.table(["model", "", *map(str, sizes)], cells))


@app.command()
def hosts(
    acceptance: Annotated[float, typer.Option(help="Of a draft token.", min=0, max=1)] = 0.7,
    max_length: Annotated[int, typer.Option(help="Longest draft.", min=1)] = 8,
    batches: Annotated[str, typer.Option(help="Requests under way.")] = "1,2,4,8,16,32,64,128,256",
) -> None:
    """The best draft length and the time of a pass on each `--host` of `smartspec simulate`:
    lab/results/hosts.md.

    Drafts cost nothing, and no policy plays: these are the lengths that one would have to find.
    Milliseconds are of a pass without drafts; the last column is the prefill of a prompt of 32,768
    tokens.
    """
    sizes = [int(size) for size in batches.split(",")]
    rows = host_lengths.rows_of(acceptance, max_length, sizes)
    names = [[row["model"], row["machine"], row["host"]] for row in rows]
    lengths = [[*name, *row["best"].values()] for name, row in zip(names, rows, strict=True)]
    typer.echo(trace_pages.table(["model", "machine", "host", *map(str, sizes)], lengths))
    times = [
        [*name, *(f"{ms:.1f}" for ms in row["pass_ms"].values()), f"{row['prefill_ms']:.0f}"]
        for name, row in zip(names, rows, strict=True)
    ]
    typer.echo(
        "\n" + trace_pages.table(["model", "machine", "host", *map(str, sizes), "prefill"], times)
    )


@app.command()
def gpu(
    policies: Annotated[
        str, typer.Option(help="As for `smartspec simulate`; uniform:1,3,5 is vLLM's goodput.")
    ] = ("uniform:1,3,5"),
    card: Annotated[str, typer.Option(help="Whose step times: h100, h200 or both.")] = ",".join(
        CARDS
    ),
    cells: Annotated[
        str,
        typer.Option(
            help="mixed, low, high, falls, rises, burst, or some of them: rises,burst 128."
        ),
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Of each cell.")] = 2,
    processes: Processes = 2,
    results: Annotated[
        Path | None, typer.Option(help="Folder in which gpu-replay.md is written.")
    ] = None,
) -> None:
    """One draft length for all, with the step times of an H100 and an H200:
    docs/results/gpu-replay.md.

    Each policy beside the best fixed length and no drafts, the worst cell first. Virtual time, a
    minute; the controller's own time is not charged.
    """
    names, chosen = policy_list(policies), cells_of(cells)
    rows = {each: play_cells(each, names, chosen, seeds, processes) for each in card.split(",")}
    typer.echo(f"{summary_table(rows)}\n\n{cells_table(rows)}")
    if results is not None:
        options = f' --cells "{cells}"' if cells else ""
        command = (
            f"python benchmarks/policies.py gpu --policies {policies} --card {card} --seeds "
            f"{seeds}{options}"
        )
        results.mkdir(parents=True, exist_ok=True)
        (results / "gpu-replay.md").write_text(page(rows, command, seeds), encoding="utf-8")


@app.command()
def insurance(
    policies: Annotated[
        str, typer.Option(help="As for `smartspec simulate`, or variants of `ablation`.")
    ] = "goodput",
    cases: Annotated[str, typer.Option(help="Some of them: changes,drafts x3.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Of each case.")] = 2,
    charged: Annotated[
        bool, typer.Option("--charged", help="Charge the controller's own time, as measured here.")
    ] = (False),
    processes: Processes = 2,
    results: Annotated[
        Path | None, typer.Option(help="Folder in which insurance.md is written.")
    ] = None,
) -> None:
    """Mean latency where estimates alone go wrong, relative to off, fixed:1, fixed:3 and goodput:
    docs/results/insurance.md.

    Acceptance falls and returns, profiles are wrong, the machine gets slower, prefill dominates,
    all prompts come at once, a search costs more than it brings. The worst case first. Minutes.
    """
    names, chosen = policy_list(policies), cases_of(cases)
    rows = play_cases(chosen, names, seeds, processes, charged)
    typer.echo(rows_table(rows))
    if results is not None:
        options = (f' --cases "{cases}"' if cases else "") + (" --charged" if charged else "")
        command = (
            f"python benchmarks/policies.py insurance --policies {policies} --seeds "
            f"{seeds}{options}"
        )
        results.mkdir(parents=True, exist_ok=True)
        (results / "insurance.md").write_text(
            insurance_page(rows, chosen, command, charged), encoding="utf-8"
        )


@app.command()
def trees(
    models: Annotated[str, typer.Option(help="8b, 70b or shapes, separated by commas.")] = (
        ",".join(simulated_trees.DEVICES)
    ),
    batches: Annotated[
        str, typer.Option(help="Requests under way, separated by commas.")
    ] = "1,2,4,8,16,32,64,128,256",
    nodes: Annotated[int, typer.Option(help="Most nodes of a draft.", min=5)] = 60,
    later_child_share: Annotated[
        float, typer.Option(help="Chance that a child is right if all likelier children are wrong.")
    ] = LATER_CHILD_SHARE,
    context: Annotated[int, typer.Option(help="Tokens of each request's context.", min=1)] = 1024,
    pairs: Annotated[
        int, typer.Option(help="Requests times steps of each run, at least 60 steps.", min=1)
    ] = 3000,
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Chains and trees of an EAGLE-3 head under each policy, by batch size, on simulated H100s.

    A steady batch with the acceptance by position published for EAGLE-3 (`smartspec simulate
    --acceptance eagle3`) and an assumed one for further children. Controllers learn what they
    decide by. Speeds are expected tokens over expected seconds of the second half of the steps,
    without noise and without the controller's own time.
    """
    rows = simulated_trees.rows_of(
        models.split(","), map(int, batches.split(",")), nodes, later_child_share, context, pairs
    )
    simulated_trees.print_table(rows)
    if output is not None:
        write_json(
            output,
            {
                "later_child_share": later_child_share,
                "context": context,
                "pairs": pairs,
                "rows": rows,
            },
        )


if __name__ == "__main__":
    run(app)
