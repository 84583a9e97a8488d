"""Mean request latency in vLLM over Poisson arrival rates: SmartSpec, no drafts, fixed lengths and Dynamic SD.

The policies are those of vllm_policies.py, whose folder must hold a Dynamic SD table and what SmartSpec learned. All
servers are started before anything is measured; for every rate and round the same requests arrive at the same moments
at each server in turn, first to last and then last to first. An output file that exists is continued.

    make test-vllm     # makes .venv-vllm and the model
    python benchmarks/vllm_rates.py --vllm-python .venv-vllm/bin/python --model-path .venv-vllm/model --plot rates.png
"""

import json
import math
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rates import console, draw, load_plan, measure_cell, report, table
from tasks import MIXED, SHIPPED_TASKS, PromptsPath, check_task, prompts_by_task
from vllm_policies import OURS, policy_command, say, start, vllm_command

from smartspec.bench.report import write_json


def main(
    vllm_python: Annotated[str, typer.Option(help="Python of the environment that holds vLLM and smartspec.")],
    model_path: Annotated[str, typer.Option(help="Folder of the model.")],
    policies: Annotated[str, typer.Option(help=f"{OURS} first, then those it is compared with.")] = (
        f"{OURS},off,fixed:3,fixed:5,dynamic-sd"
    ),
    rates: Annotated[str, typer.Option(help="Requests per second.")] = "0.2,0.5,1,1.5,2",
    seconds: Annotated[float, typer.Option(min=1, help="Length of a round.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each rate.")] = 2,
    minutes: Annotated[float, typer.Option(help="Begin no rate later than this.")] = math.inf,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens per request.")] = 64,
    kv_tokens: Annotated[int, typer.Option(min=4096, help="KV memory of each server in tokens.")] = 18432,
    task: Annotated[str, typer.Option(help=f"Of the prompts; of smartspec's: {SHIPPED_TASKS}.")] = MIXED,
    prompts: PromptsPath = None,
    folder: Annotated[Path, typer.Option(help="Of vllm_policies.py; rates.json is written there.")] = Path(
        "build/vllm-policies"
    ),
    plot: Annotated[Path | None, typer.Option(help="PNG to draw.")] = None,
) -> None:
    began, names, by_task = time.monotonic(), policies.split(","), prompts_by_task(prompts)
    check_task(task, by_task)
    if names[0] != OURS:
        raise ValueError(f"--policies {policies}: {OURS} has to come first")
    if not (folder / "results.json").exists():
        raise ValueError(f"{folder} holds no results.json: run vllm_policies.py first, or give its --folder")
    dynamic_sd = json.loads((folder / "results.json").read_text())["table"]
    vllm = vllm_command(model_path, vllm_python, kv_tokens)
    output = folder / "rates.json"
    cells = json.loads(output.read_text()) if output.exists() else []
    done = {(cell["rate"], cell["round"]) for cell in cells}
    todo = [(number, rate) for number in range(rounds) for rate in map(float, rates.split(","))]
    todo = [(number, rate) for number, rate in todo if (rate, number) not in done]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are ended
    with ExitStack() as stack:
        commands = {name: policy_command(name, vllm, folder, dynamic_sd) for name in names if todo}
        targets = start(commands, folder, stack)
        for number, rate in todo:
            if time.monotonic() - began > 60 * minutes:
                say(f"{minutes:g} minutes are over: rate {rate:g} of round {number} and what follows is left")
                break
            plan = load_plan(by_task[task], rate, seconds, max_tokens, seed=number)
            in_turn = dict(targets if number % 2 == 0 else reversed(targets.items()))
            cells.append({"rate": rate, "round": number, "summaries": measure_cell(in_turn, plan)})
            write_json(output, cells)
            report(cells[-1])
    console.print(table(cells, names))
    if plot is not None:
        draw(cells, names, plot)


# "\b" keeps typer from joining the lines of a paragraph, and with them the commands.
main.__doc__ = "\b\n" + __doc__.replace("\n\n", "\n\n\b\n")

if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(main)
    app()
