"""What does SmartSpec bring and cost inside vLLM?

    make test-vllm     # makes .venv-vllm and the model
    python benchmarks/vllm_plugin.py policies --vllm-python .venv-vllm/bin/python --model-path .venv-vllm/model
    python benchmarks/vllm_plugin.py rates --vllm-python .venv-vllm/bin/python --model-path .venv-vllm/model
    python benchmarks/vllm_plugin.py head HEAD --vllm-python .venv-vllm/bin/python --model-path .venv-vllm/model
    python benchmarks/vllm_plugin.py hooks --vllm-python .venv-vllm/bin/python --model-path .venv-vllm/model
    python benchmarks/vllm_plugin.py lengths
    OMP_NUM_THREADS=1 python benchmarks/vllm_plugin.py overhead

lengths and overhead need no vLLM. The others compute on all cores, or on those of
VLLM_CPU_OMP_THREADS_BIND.
"""  # noqa: E501

import json
import os
import subprocess
import sys
from pathlib import Path
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
from lib.vllm_policies import (
    ALL_OURS,
    NGRAM,
    OURS,
    POLICIES,
    Cell,
    Results,
    compare,
    end_servers_on_sigterm,
    is_ours,
    servers_of,
    vllm_command,
)
from rich.console import Console

from smartspec.control import CostCurve

ROOT = Path(__file__).parents[1]
MAX_MODEL_LEN = 2048
VllmPython = Annotated[
    str, typer.Option(help="Python of the environment that holds vLLM and smartspec.")
]
ModelPath = Annotated[str, typer.Option(help="Folder of the model.")]
Tasks = Annotated[str, typer.Option(help=f"Of {SHIPPED_TASKS}.")]
Concurrency = Annotated[str, typer.Option(help="Separated by commas.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds of each cell.")]
KVTokens = Annotated[int, typer.Option(min=4096, help="KV memory of each server in tokens.")]
app = application(__doc__)


@app.command()
def policies(
    vllm_python: VllmPython,
    model_path: ModelPath,
    policies: Annotated[
        str,
        typer.Option(help=f"Separated by commas; with off, and one of {', '.join(ALL_OURS)} last."),
    ] = POLICIES,
    tasks: Tasks = "summarization,rag,editing,chat",
    concurrency: Concurrency = "1,4,8,16,32",
    rounds: Rounds = 6,
    waves: Annotated[
        float, typer.Option(min=1, help="Requests of a round, for each that runs at a time.")
    ] = 3,
    max_tokens: Annotated[
        int, typer.Option(min=2, help="New tokens per request, on average.")
    ] = 64,
    kv_tokens: KVTokens = 18432,
    head: Annotated[
        Path | None, typer.Option(help="Draft with this EAGLE-3 head instead of ngram.")
    ] = None,
    prompts: PromptsPath = None,
    folder: Annotated[Path, typer.Option(help="Results, logs, and what was learned.")] = Path(
        "build/vllm-policies"
    ),
) -> None:
    """Throughput of off, fixed lengths, Dynamic SD and SmartSpec on one machine, interleaved, the
    worst cell first.

    Every policy is a vLLM server with ngram drafts, or with those of an EAGLE-3 head; `off` has no
    drafter at all. All are started before anything is measured and stand idle while another one
    serves; each takes some 3 GB, so where memory is short, name fewer policies. A cell is a task
    and a concurrency. A round of a cell gives the same new prompts to each server in turn; each
    round begins with another server. Closed loop, greedy; a request makes half to one and a half
    times --max-tokens new tokens, whatever the model says. With equal lengths, requests that begin
    together would also end together without drafts. Each request has a cache_salt of its own, so
    that none finds prefixes or answers of another: prompts come again. There are --waves times as
    many requests as run at a time, four at least: once none are waiting, a step is as long as its
    slowest request makes it, whatever the others draft.

    First a server of SmartSpec's alone serves every cell once, without a queue: what it learned of
    step times is where SmartSpec starts from, and with the acceptance it saw makes the table of
    Dynamic SD (`num_speculative_tokens_per_batch_size`).

    smartspec:scheduler drafts with our own drafters, in vLLM's scheduler.
    Tokens per second of a cell are the geometric mean of its rounds. The ratio is that of the last
    policy to the best other; in brackets the 90 % interval, bootstrap over rounds, in which each
    draw has a best of its own. Then the same against off. The folder keeps everything: the same
    command goes on where it was ended, after an error or Ctrl-C; with --rounds raised it adds to
    what is there.
    """
    vllm, names, by_task = (
        vllm_command(model_path, vllm_python, kv_tokens),
        policies.split(","),
        prompts_by_task(prompts),
    )
    if "off" not in names or not is_ours(names[-1]):
        raise ValueError(
            f"--policies {policies}: name off, and one of {', '.join(ALL_OURS)} last: the ratios "
            "need both"
        )
    by_task = prompts_by_task(prompts)
    for task in tasks.split(","):
        check_task(task, by_task)
    cells = [
        Cell(task, int(level)) for task in tasks.split(",") for level in concurrency.split(",")
    ]
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"policies": names, "waves": waves, "max_tokens": max_tokens, "kv_tokens": kv_tokens}
    settings |= {"prompts": str(prompts), "head": str(head)}
    method = NGRAM if head is None else {"method": "eagle3", "model": str(head.absolute())}
    compare(Results.read(folder / "results.json", settings), cells, rounds, by_task, vllm, method)


@app.command()
def rates(
    vllm_python: VllmPython,
    model_path: ModelPath,
    policies: Annotated[
        str, typer.Option(help=f"{OURS} first, then those it is compared with.")
    ] = (f"{OURS},off,fixed:3,fixed:5,dynamic-sd"),
    rates: Annotated[str, typer.Option(help="Requests per second.")] = "0.2,0.5,1,1.5,2",
    seconds: Annotated[float, typer.Option(min=1, help="Length of a round.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each rate.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens per request.")] = 64,
    kv_tokens: KVTokens = 18432,
    task: Annotated[
        str, typer.Option(help=f"Of the prompts; of smartspec's: {SHIPPED_TASKS}.")
    ] = MIXED,
    prompts: PromptsPath = None,
    folder: Annotated[
        Path, typer.Option(help="Of `policies`; rates.json is written there.")
    ] = Path("build/vllm-policies"),
    plot: Annotated[Path | None, typer.Option(help="PNG to draw.")] = None,
) -> None:
    """Mean request latency over Poisson arrival rates: SmartSpec, no drafts, fixed lengths and
    Dynamic SD.

    The policies are those of `policies`, whose folder must hold a Dynamic SD table and what
    SmartSpec learned. All servers are started before anything is measured; for every rate and
    round, each server in turn gets the same requests at the same moments. The order is first to
    last, then last to first. Rates that the folder holds are kept.
    """
    names, by_task = policies.split(","), prompts_by_task(prompts)
    check_task(task, by_task)
    if names[0] != OURS:
        raise ValueError(f"--policies {policies}: {OURS} has to come first")
    if not (folder / "results.json").exists():
        raise ValueError(
            f"{folder} holds no results.json: run `vllm_plugin.py policies` first, or give its "
            "--folder"
        )
    dynamic_sd = json.loads((folder / "results.json").read_text())["table"]
    vllm, cells = (
        vllm_command(model_path, vllm_python, kv_tokens),
        Cells.read(folder / "rates.json"),
    )
    todo = cells.missing(rates, rounds)
    end_servers_on_sigterm()
    with servers_of(names if todo else [], vllm, folder, dynamic_sd) as targets:
        for number, rate in todo:
            cells.measure(
                number,
                targets,
                load_plan(by_task[task], rate, seconds, max_tokens, seed=number),
                rate,
            )
    report(cells.found, names, plot)


@app.command()
def head(
    head: Annotated[
        Path,
        typer.Argument(help="Folder of the head.", exists=True, file_okay=False, resolve_path=True),
    ],
    vllm_python: VllmPython,
    model_path: Annotated[str, typer.Option(help="Folder of the target.")],
    length: Annotated[int, typer.Option(min=1, help="Tokens of every draft.")] = 5,
    per_task: Annotated[int, typer.Option(min=1, help="Prompts of each task.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens of each prompt.")] = 128,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Relative, of emitted tokens per step.")
    ] = 0.05,
    prompts: PromptsPath = None,
) -> None:
    """One EAGLE-3 head in stock vLLM and in our engine: does it load in both, and is as much of its
    drafts accepted?

    Both use chains of a fixed length, greedy, the same prompts of each task and one target in
    float32. Printed is the chance that at least 1, 2, ... tokens of a draft are accepted, and
    emitted tokens per step. The exit status is 1 if those differ by more than the tolerance. vLLM
    also counts tokens of a last draft beyond the end of an answer; with long answers these are few.
    """
    from lib.vllm_head import in_our_engine, in_vllm, print_table, tokenized

    from smartspec.engine.runtime.config import EngineConfig

    # vLLM keeps a head as it is stored; our engine rounds its weights, unless told not to.
    limits = {"max_batch": 1, "max_model_len": MAX_MODEL_LEN}
    config = EngineConfig(model=model_path, drafters=(str(head),), quantization="none", **limits)
    token_ids = tokenized(config, prompts, per_task, max_tokens)
    ours = in_our_engine(config, token_ids, length, max_tokens)
    theirs = in_vllm(vllm_python, model_path, head, token_ids, length, max_tokens)
    if abs(print_table(ours, theirs) - 1.0) > tolerance:
        raise typer.Exit(1)


@app.command()
def hooks(vllm_python: VllmPython, model_path: ModelPath) -> None:
    """What SmartSpec takes of a step after real passes of a model, where little of its code is in
    the caches.

    `overhead`, where nothing else runs, says less. The table has, by the number of requests that
    decode: the median step; the mean milliseconds that the next step waits for the scheduler's
    hooks, for those of the controller and for the others; and the mean milliseconds of learning
    while a step runs. ngram drafts, greedy, shipped chat prompts, vLLM in one process.
    """
    script = Path(__file__).with_name("lib") / "vllm_hooks.py"
    raise typer.Exit(subprocess.run([vllm_python, str(script), model_path]).returncode)


@app.command()
def lengths(
    texts: Annotated[Path, typer.Option(help="File of texts, made if it is not there.")] = Path(
        "build/vllm-texts.json"
    ),
    policies: Annotated[
        str, typer.Option(help=f"Others than {OURS}, separated by commas; off first.")
    ] = ("off,fixed:1,fixed:3,fixed:5"),
    tasks: Tasks = "summarization,rag,editing,chat",
    concurrency: Concurrency = "1,4,8,16,32",
    rounds: Rounds = 6,
    waves: Annotated[
        int, typer.Option(min=1, help="Requests of a round, for each that runs at a time.")
    ] = 4,
    per_task: Annotated[int, typer.Option(min=1, help="Texts of a task.")] = 24,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens of a text, on average.")] = 64,
    constant: Annotated[float, typer.Option(help="Milliseconds of a pass.")] = 36.2,
    per_token: Annotated[float, typer.Option(help="Milliseconds of a token in it.")] = 2.21,
    costs: Annotated[
        Path | None, typer.Option(help="File of a cost model that the plugin has kept.")
    ] = None,
    noise: Annotated[float, typer.Option(min=0.0, help="Of the time of a pass, relative.")] = 0.05,
    prompts: PromptsPath = None,
) -> None:
    """What the decisions are worth with ngram drafts, without a machine's noise: the worst cell
    first.

    The plugin itself decides, around a stand-in for vLLM's scheduler. Texts are greedy answers of
    the default model, made by our engine and kept in a file; drafts follow vLLM's rule of lookup on
    these texts. Time is virtual. A pass takes as long as in vLLM 0.32 on two cores (--constant and
    --per-token), with some noise. With --costs it takes the times of a cost model that the plugin
    has kept, a file of its cache. The scheduler's own work takes no time.

    Closed loop: a fixed number of requests at a time, until a multiple of it has been served. Each
    makes half to one and a half times --max-tokens new tokens, or fewer if its answer ends.
    SmartSpec serves every cell once before anything counts. Tokens per second are geometric means
    over rounds.
    """
    from lib import vllm_lengths

    use_stand_in()
    curve = CostCurve.linear(constant / 1000, per_token / 1000)
    if costs is not None:
        curve = CostCurve.from_dict(json.loads(costs.read_text())["cost_model"]["target"])
    by_task = vllm_lengths.read_texts(
        texts, prompts, tasks.split(","), per_task, 3 * max_tokens // 2
    )
    names, levels = [*policies.split(","), OURS], [int(level) for level in concurrency.split(",")]
    sizes = {level: max(2, waves * level) for level in levels}
    speeds = vllm_lengths.compare(names, by_task, sizes, rounds, max_tokens, curve, noise)
    Console(width=130).print(vllm_lengths.results_table(names, speeds))


@app.command()
def overhead(
    requests: Annotated[
        str, typer.Option(help="Numbers of requests, separated by commas.")
    ] = "32,256",
    tokens: Annotated[int, typer.Option(min=200, help="New tokens per request.")] = 600,
) -> None:
    """What SmartSpec adds to a step of vLLM's scheduler.

    The plugin runs around a stand-in for vLLM's scheduler, which feeds requests as vLLM's does,
    with a target whose text and times are known. The time of all calls of SmartSpec is added up
    step by step. The next step waits for `controller` (checks, estimates, plan) and for `plugin`,
    all other calls. `meanwhile` is the time of calls while a step runs (learning, reports, with
    those of the controller). Milliseconds, median and 95th percentile over steps in which all
    requests decode. CPU time of the thread: what other programs take does not count.
    """
    from lib import vllm_overhead

    use_stand_in()
    Console(width=130).print(
        vllm_overhead.results_table([int(number) for number in requests.split(",")], tokens)
    )


def use_stand_in() -> None:
    """`import vllm` finds the stand-in of our tests."""
    os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")  # nothing to warn about
    tests = ROOT / "tests" / "vllm_plugin"
    sys.path[:0] = [str(tests), str(tests / "stub")]


if __name__ == "__main__":
    run(app)
