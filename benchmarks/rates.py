"""Mean request latency over Poisson arrival rates, `goodput` against `off` and fixed lengths, on the real engine.

    python benchmarks/rates.py --rates 0.3,0.6,1,1.5,2,3 --output rates.json --plot rates.png

All servers are up at once but only one works at a time: for every rate and round the same requests arrive at the same
moments at each server in turn, first to last and then last to first. Servers are started anew for every round: two
processes of one program differ in speed by one percent or two for as long as they live, as their pages lie elsewhere.
A session number in the system message keeps prefix caches from helping; a prompt may come again at another rate, which
drafters that remember have easier. The table gives the mean end-to-end latency of each policy and, as noise, the lowest
and highest ratio to goodput's of a single round. An output file that exists is continued.
"""

import json
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from peers import SETTLE_SECONDS, SYSTEM_MESSAGE
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from servers import running, server_command
from tasks import MIXED, SHIPPED_TASKS, PromptsPath, check_task, prompts_by_task

from smartspec.bench.client import LoadRequest, Target
from smartspec.bench.report import write_json
from smartspec.bench.run import LoadPlan, measure
from smartspec.workload.arrivals import poisson_arrivals
from smartspec.workload.prompts import Prompt, draw_prompts

console = Console()
if not console.is_terminal:
    console.width = 120


def load_plan(prompts: list[Prompt], rate: float, seconds: float, max_tokens: int, seed: int) -> LoadPlan:
    """Requests of about so many seconds at that rate; a session number in front keeps them apart from other rounds."""
    count = max(8, round(rate * seconds))
    drawn = draw_prompts(prompts, count, np.random.default_rng([seed, round(1000 * rate)]))
    system = SYSTEM_MESSAGE.format(session=f"{rate:g} {seed}")
    requests = [
        LoadRequest(f"{p.prompt_id} {i}", p.task, p.text, max_tokens, system=system) for i, p in enumerate(drawn)
    ]
    return LoadPlan(requests, arrival_seconds=poisson_arrivals(rate, count, np.random.default_rng([seed, 7])))


def started(names: list[str], stack: ExitStack) -> dict[str, Target]:
    """Servers of these policies, that run until the stack is left."""
    folder, targets = Path(stack.enter_context(TemporaryDirectory(prefix="rates-"))), {}
    for name in names:
        console.print(f"starting {name}", highlight=False)
        command = server_command(name, None, None)
        targets[name] = stack.enter_context(running(command, folder / f"{len(targets)}.log"))
    return targets


def measure_cell(targets: dict[str, Target], plan: LoadPlan) -> dict[str, dict]:
    """A summary of the same load on each server in turn."""
    summaries = {}
    for name, target in targets.items():
        time.sleep(SETTLE_SECONDS)
        summary = measure(target, plan)[1]
        if summary.num_unfinished:
            raise typer.Exit(130)
        summaries[name] = asdict(summary)
    return summaries


def report(cell: dict) -> None:
    figures = ", ".join(f"{name} {latency(summary):.2f}" for name, summary in cell["summaries"].items())
    console.print(f"rate {cell['rate']:g}, round {cell['round']}: {figures} s", highlight=False)


def latency(summary: dict) -> float:
    return summary["end_to_end_seconds"]["mean"]


def table(cells: list[dict], policies: list[str]) -> Table:
    """A line per rate and policy, the policy that beats goodput by most first."""
    title = f"mean end-to-end seconds, and {policies[0]}'s relative to it"
    result = Table(title=title, title_justify="left", box=SIMPLE)
    for column in ("rate", "policy", "seconds", policies[0], "ratio", "rounds"):
        result.add_column(column, justify="right", no_wrap=True)
    rows = []
    for rate in sorted({cell["rate"] for cell in cells}):
        of = {p: [latency(c["summaries"][p]) for c in cells if c["rate"] == rate] for p in policies}
        for policy in policies[1:]:
            ratios = [ours / theirs for ours, theirs in zip(of[policies[0]], of[policy], strict=True)]
            rows.append((fmean(of[policies[0]]) / fmean(of[policy]), rate, policy, of, ratios))
    for ratio, rate, policy, of, ratios in sorted(rows, key=lambda row: -row[0]):
        means = f"{fmean(of[policy]):.2f}", f"{fmean(of[policies[0]]):.2f}"
        result.add_row(f"{rate:g}", policy, *means, f"{ratio:.3f}", f"{min(ratios):.2f}-{max(ratios):.2f}")
    return result


def draw(cells: list[dict], policies: list[str], path: Path) -> None:
    """Latency over rate, a line per policy; bars from the fastest to the slowest round."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    rates = sorted({cell["rate"] for cell in cells})
    for policy in policies:
        rounds = [[latency(c["summaries"][policy]) for c in cells if c["rate"] == rate] for rate in rates]
        means = np.array([fmean(values) for values in rounds])
        spread = np.abs(np.array([[min(values), max(values)] for values in rounds]).T - means)
        width = 2.5 if policy == policies[0] else 1.2
        axes.errorbar(rates, means, yerr=spread, label=policy, linewidth=width, capsize=3, marker="o", markersize=3)
    axes.set(xlabel="requests per second", ylabel="mean end-to-end latency (s)", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main(
    policies: Annotated[str, typer.Option(help="Ours first, then what it is compared with.")] = (
        "goodput,off,fixed:1,fixed:2,fixed:3,fixed:5"
    ),
    rates: Annotated[str, typer.Option(help="Requests per second.")] = "0.3,0.6,1,1.5,2,3",
    seconds: Annotated[float, typer.Option(min=1, help="Length of a round.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each rate.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens per request.")] = 64,
    task: Annotated[str, typer.Option(help=f"Of the prompts; of smartspec's: {SHIPPED_TASKS}.")] = MIXED,
    prompts: PromptsPath = None,
    output: Annotated[Path, typer.Option(help="JSON file to write, or to continue.")] = Path("rates.json"),
    plot: Annotated[Path | None, typer.Option(help="PNG to draw.")] = None,
) -> None:
    """Latency against arrival rate, policies side by side."""
    names, by_task = policies.split(","), prompts_by_task(prompts)
    check_task(task, by_task)
    cells = json.loads(output.read_text(encoding="utf-8")) if output.exists() else []
    done = {(cell["rate"], cell["round"]) for cell in cells}
    for number in range(rounds):
        missing = [rate for rate in map(float, rates.split(",")) if (rate, number) not in done]
        with ExitStack() as stack:
            targets = started(names if missing else [], stack)
            for rate in missing:
                plan = load_plan(by_task[task], rate, seconds, max_tokens, seed=number)
                in_turn = dict(targets if number % 2 == 0 else reversed(targets.items()))
                cells.append({"rate": rate, "round": number, "summaries": measure_cell(in_turn, plan)})
                write_json(output, cells)
                report(cells[-1])
    console.print(table(cells, names))
    if plot is not None:
        draw(cells, names, plot)


if __name__ == "__main__":
    typer.run(main)
