"""Mean latency over Poisson arrival rates: load, measurement, table and plot."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import typer
from rich.table import Table

from lib.commands import console_of, table_of
from lib.servers import SETTLE_SECONDS
from smartspec.bench.client import LoadRequest, Target
from smartspec.bench.load import LoadPlan
from smartspec.bench.report import write_json
from smartspec.bench.run import measure
from smartspec.workload.arrivals import poisson_arrivals
from smartspec.workload.prompts import Prompt, draw_prompts

console = console_of(120)


def load_plan(
    prompts: list[Prompt], rate: float, seconds: float, max_tokens: int, seed: int
) -> LoadPlan:
    """Requests of about so many seconds at that rate. None finds prefixes or answers of another in
    the server."""
    count = max(8, round(rate * seconds))
    drawn = draw_prompts(prompts, count, np.random.default_rng([seed, round(1000 * rate)]))
    requests = [
        LoadRequest(
            f"{p.prompt_id} {i}", p.task, p.text, max_tokens, cache_salt=f"{rate:g} {seed} {i}"
        )
        for i, p in enumerate(drawn)
    ]
    return LoadPlan(
        requests, arrival_seconds=poisson_arrivals(rate, count, np.random.default_rng([seed, 7]))
    )


@dataclass(frozen=True)
class Cells:
    """Kept in a file: rate, round, and summary of each policy, of every cell that was measured."""

    path: Path
    found: list[dict]

    @staticmethod
    def read(path: Path) -> "Cells":
        return Cells(path, json.loads(path.read_text(encoding="utf-8")) if path.exists() else [])

    def missing(self, rates: str, rounds: int) -> list[tuple[int, float]]:
        """(round, rate), all rates of a round before the next."""
        done = {(cell["round"], cell["rate"]) for cell in self.found}
        todo = [(number, rate) for number in range(rounds) for rate in map(float, rates.split(","))]
        return [cell for cell in todo if cell not in done]

    def measure(self, number: int, targets: dict[str, Target], plan: LoadPlan, rate: float) -> None:
        """The same load on each server in turn, first to last and then last to first."""
        in_turn = targets if number % 2 == 0 else dict(reversed(targets.items()))
        summaries = {name: _summary(target, plan) for name, target in in_turn.items()}
        self.found.append({"rate": rate, "round": number, "summaries": summaries})
        write_json(self.path, self.found)
        figures = ", ".join(f"{name} {latency(summary):.2f}" for name, summary in summaries.items())
        console.print(f"rate {rate:g}, round {number}: {figures} s", highlight=False)


def _summary(target: Target, plan: LoadPlan) -> dict:
    time.sleep(SETTLE_SECONDS)
    summary = measure(target, plan)[1]
    if summary.num_unfinished:
        raise typer.Exit(130)
    return asdict(summary)


def latency(summary: dict) -> float:
    return summary["end_to_end_seconds"]["mean"]


def report(cells: list[dict], policies: list[str], plot: Path | None) -> None:
    """Print the table, and draw the plot if there is a path for it."""
    console.print(table(cells, policies))
    if plot is not None:
        draw(cells, policies, plot)


def table(cells: list[dict], policies: list[str]) -> Table:
    """A line per rate and policy, the policy that beats goodput by most first."""
    title = f"mean end-to-end seconds, and {policies[0]}'s relative to it"
    rows = []
    for rate in sorted({cell["rate"] for cell in cells}):
        of = {p: [latency(c["summaries"][p]) for c in cells if c["rate"] == rate] for p in policies}
        for policy in policies[1:]:
            ratios = [
                ours / theirs for ours, theirs in zip(of[policies[0]], of[policy], strict=True)
            ]
            rows.append((fmean(of[policies[0]]) / fmean(of[policy]), rate, policy, of, ratios))
    figures = []
    for ratio, rate, policy, of, ratios in sorted(rows, key=lambda row: -row[0]):
        means = f"{fmean(of[policy]):.2f}", f"{fmean(of[policies[0]]):.2f}"
        figures.append(
            (f"{rate:g}", policy, *means, f"{ratio:.3f}", f"{min(ratios):.2f}-{max(ratios):.2f}")
        )
    return table_of(
        title, ("rate", "policy", "seconds", policies[0], "ratio", "rounds"), figures, num_names=0
    )


def draw(cells: list[dict], policies: list[str], path: Path) -> None:
    """Latency over rate, a line per policy; bars from the fastest to the slowest round."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    rates = sorted({cell["rate"] for cell in cells})
    for policy in policies:
        rounds = [
            [latency(c["summaries"][policy]) for c in cells if c["rate"] == rate] for rate in rates
        ]
        means = np.array([fmean(values) for values in rounds])
        spread = np.abs(np.array([[min(values), max(values)] for values in rounds]).T - means)
        width = 2.5 if policy == policies[0] else 1.2
        axes.errorbar(
            rates,
            means,
            yerr=spread,
            label=policy,
            linewidth=width,
            capsize=3,
            marker="o",
            markersize=3,
        )
    axes.set(xlabel="requests per second", ylabel="mean end-to-end latency (s)", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
