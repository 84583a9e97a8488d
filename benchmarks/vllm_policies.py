"""Draft lengths in vLLM: off, fixed, Dynamic SD and SmartSpec on one machine, in alternating waves, worst cell first.

Every policy is a vLLM server of its own with ngram drafts; `off` has no drafter at all. A server is started for a wave
and is alone (each holds nearly 4 GB). A wave gives the same prompts of every cell (a task and a concurrency) to each
server in turn, and every wave begins with another one; a first request of each server warms it. Before that a server of
SmartSpec's serves every cell once: what it learned of step times is where SmartSpec starts from, and with the
acceptance it saw makes the table of Dynamic SD (`num_speculative_tokens_per_batch_size`).

The ratio is the median over the waves of SmartSpec's tokens per second against the best other policy of the same wave,
beside the lowest and highest.

    make test-vllm     # makes .venv-vllm and the model
    python benchmarks/vllm_policies.py --vllm-python .venv-vllm/bin/python --model-path .venv-vllm/model \\
        --tasks summarization,rag,editing,chat --concurrency 1,4,8,16,32 --waves 6 --output vllm.json
"""

import json
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from servers import ServerCommand, running, server_command
from tasks import SHIPPED_TASKS, PromptsPath, check_task, prompts_by_task

from smartspec.bench.client import LoadRequest
from smartspec.bench.report import write_json
from smartspec.bench.run import LoadPlan, measure
from smartspec.sim.length_table import length_table, vllm_config
from smartspec.sim.recorded_log import RecordedLog
from smartspec.sim.scenario import Scenario
from smartspec.workload.prompts import Prompt, draw_prompts

LONGEST = 5
POLICIES = "off,fixed:1,fixed:3,fixed:5,dynamic-sd,smartspec"
SYSTEM_MESSAGE = "You are a helpful AI assistant. (Session {session})"
console = Console()


def policy_command(name: str, vllm: ServerCommand, folder: Path, table: dict | None) -> ServerCommand:
    """The server of a policy. folder: where SmartSpec keeps what it learns; table: of Dynamic SD."""
    if name == "off":
        return vllm
    drafts = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": LONGEST}
    options = []
    if name.startswith("fixed:"):
        drafts["num_speculative_tokens"] = int(name.removeprefix("fixed:"))
    elif name == "dynamic-sd":
        drafts |= table or {}
    elif name == "smartspec":
        settings = {"smartspec": {"cache": str(folder)}}
        if table is None:
            settings["smartspec"]["decision_log"] = str(folder / "learned.jsonl")
        options = ["--scheduler-cls", "smartspec.vllm_plugin.Scheduler", "--additional-config", literal(settings)]
    else:
        raise ValueError(f"unknown policy {name!r}: use off, fixed:K, dynamic-sd or smartspec")
    return ServerCommand([*vllm.arguments, "--speculative-config", literal(drafts), *options], vllm.environment)


def literal(value: dict) -> str:
    """JSON whose braces are left alone when the port is filled in."""
    return json.dumps(value).replace("{", "{{").replace("}", "}}")


def learn(vllm: ServerCommand, folder: Path, cells: dict[tuple[str, int], list[LoadRequest]]) -> dict:
    """Serve every cell once with SmartSpec, and make a table from the step times and the acceptance seen."""
    with running(policy_command("smartspec", vllm, folder, None), folder / "learn.log") as target:
        for (_, concurrency), requests in cells.items():
            measure(target, LoadPlan(requests, concurrency=concurrency))
    (cost_file,) = (folder / "vllm").glob("*.json")
    curves = folder / "curves.json"
    curves.write_text(json.dumps(json.loads(cost_file.read_text())["cost_model"]))
    steps = [record.feedback for record in RecordedLog(folder / "learned.jsonl")]
    acceptance = sum(s.accepted.sum() for s in steps) / max(sum(s.tested.sum() for s in steps), 1)
    scenario = Scenario(hardware=str(curves), drafter="lookup", batch=1, max_draft_tokens=LONGEST)
    table = vllm_config(length_table(scenario, float(acceptance)))
    console.print(f"acceptance {acceptance:.2f}, table {table}", markup=False, highlight=False)
    return table


def draw(task: str, prompts: list[Prompt], concurrency: int, wave: int, max_tokens: int) -> list[LoadRequest]:
    """Requests of a wave of a cell; a session number keeps prefix caches from helping."""
    system = SYSTEM_MESSAGE.format(session=f"{task} {concurrency} {wave}")
    drawn = draw_prompts(prompts, max(2, concurrency), np.random.default_rng([concurrency, wave + 2]))
    return [
        LoadRequest(f"{prompt.prompt_id} {i}", task, prompt.text, max_tokens, system=f"{system} {i}")
        for i, prompt in enumerate(drawn)
    ]


def run_wave(command: ServerCommand, log: Path, cells: dict[tuple[str, int], list[LoadRequest]]) -> list[dict]:
    """Tokens per second and texts of a server started for it, by cell."""
    results = []
    with running(command, log) as target:
        measure(target, LoadPlan([LoadRequest("warm", "warm", "Say hello.", 16)], concurrency=1))
        for (_, concurrency), requests in cells.items():
            records, summary = measure(target, LoadPlan(requests, concurrency=concurrency))
            texts = {record.prompt_id: record.text for record in records}
            results.append(asdict(summary) | {"texts": texts})
    return results


def table_of(cells: list[dict], policies: list[str]) -> Table:
    """A line for each cell, the worst ratio of SmartSpec first."""
    result = Table("task", "c", title="Tokens/s in vLLM, and SmartSpec against the best other", box=SIMPLE)
    for column in (*policies, "ratio", "waves", "same text"):
        result.add_column(column, justify="right", no_wrap=True)
    rows = []
    for cell in cells:
        speeds = {p: [wave[p]["output_tokens_per_second"] for wave in cell["waves"]] for p in policies}
        best = [max(values) for values in zip(*(speeds[p] for p in policies if p != "smartspec"), strict=True)]
        ratios = [ours / other for ours, other in zip(speeds.get("smartspec", best), best, strict=True)]
        same = sum(wave[p]["texts"] == wave[policies[0]]["texts"] for wave in cell["waves"] for p in policies)
        rows.append((median(ratios), cell, speeds, ratios, same))
    for ratio, cell, speeds, ratios, same in sorted(rows, key=lambda row: row[0]):
        middle = [f"{median(values):.1f}" for values in speeds.values()]
        spread, texts = f"{min(ratios):.2f}-{max(ratios):.2f}", f"{same}/{len(ratios) * len(policies)}"
        result.add_row(cell["task"], str(cell["concurrency"]), *middle, f"{ratio:.2f}", spread, texts)
    return result


def main(
    vllm_python: Annotated[str, typer.Option(help="Python of the environment that holds vLLM and smartspec.")],
    model_path: Annotated[str, typer.Option(help="Folder of the model.")],
    policies: Annotated[
        str, typer.Option(help="Separated by commas.")
    ] = "off,fixed:1,fixed:3,fixed:5,dynamic-sd,smartspec",
    tasks: Annotated[str, typer.Option(help=f"Of {SHIPPED_TASKS}.")] = "summarization,rag,editing,chat",
    concurrency: Annotated[str, typer.Option(help="Separated by commas.")] = "1,4,8,16,32",
    waves: Annotated[int, typer.Option(min=1, help="Waves that count.")] = 6,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens per request.")] = 64,
    prompts: PromptsPath = None,
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    vllm, names = server_command("vllm", model_path, vllm_python), policies.split(",")
    by_task, levels = prompts_by_task(prompts), [int(level) for level in concurrency.split(",")]
    for task in tasks.split(","):
        check_task(task, by_task)
    keys = [(task, level) for task in tasks.split(",") for level in levels]

    def cells_of(wave: int) -> dict[tuple[str, int], list[LoadRequest]]:
        return {key: draw(key[0], by_task[key[0]], key[1], wave, max_tokens) for key in keys}

    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        table = learn(vllm, folder, cells_of(-1))
        commands = {name: policy_command(name, vllm, folder, table) for name in names}
        cells = {key: {"task": key[0], "concurrency": key[1], "waves": [{} for _ in range(waves)]} for key in keys}
        for wave in range(waves):
            requests = cells_of(wave)
            for name in [*names[wave % len(names) :], *names[: wave % len(names)]]:
                results = run_wave(commands[name], folder / "server.log", requests)
                for key, result in zip(keys, results, strict=True):
                    cells[key]["waves"][wave][name] = result
                speeds = " ".join(f"{result['output_tokens_per_second']:.1f}" for result in results)
                console.print(f"wave {wave + 1}, {name}: {speeds} tokens/s", markup=False, highlight=False)
        if output is not None:
            write_json(output, {"policies": names, "table": table, "cells": list(cells.values())})
    console.print(table_of(list(cells.values()), names))


# "\b" keeps typer from joining the lines of a paragraph, and with them the commands.
main.__doc__ = "\b\n" + __doc__.replace("\n\n", "\n\n\b\n")

if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(main)
    app()
