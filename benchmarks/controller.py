"""The controller against the truth, in simulation: the first table of docs/notes/2026-11-controller-experiments.md.

    python benchmarks/controller.py --seeds 20 --output controller.jsonl

Goodput is what the plans are worth in expectation under the truth (what the controller sees is random draws). Ratios
are taken per seed, between policies that met the same truth; the table gives their mean, and the lowest and highest of
a single seed, worst cell first. An output file that exists is continued.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from controller_cases import CASES, Cell
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import track
from rich.table import Table

from smartspec.sim.simulation import simulate_static

RECOVERED = 0.97  # of the goodput of perfect estimates, over RECOVERY_WINDOW steps
RECOVERY_WINDOW = 10
console = Console()
if not console.is_terminal:
    console.width = 140


def play(cell: Cell, policy: str, seed: int) -> dict:
    """Expected tokens and seconds of every step that counts, in runs of RECOVERY_WINDOW steps."""
    scenario, phases, num_skipped = cell.played_by(policy, seed)
    log = simulate_static(scenario, phases)
    steps = slice(num_skipped, None)
    return {
        "emitted": _windows(log.expected_emitted[steps]),
        "seconds": _windows(log.expected_seconds[steps]),
        "mean_k": float(log.verified[steps].sum() / log.num_rows[steps].sum()),
    }


def _windows(values: np.ndarray) -> list[float]:
    return [float(chunk.sum()) for chunk in np.array_split(values, max(len(values) // RECOVERY_WINDOW, 1))]


def goodput(entry: dict) -> float:
    return sum(entry["emitted"]) / sum(entry["seconds"])


def recovery_steps(entry: dict, perfect: dict, cell: Cell) -> int:
    """Most steps any phase took to come back to RECOVERED of perfect estimates' goodput, by RECOVERY_WINDOW."""
    ratios = np.divide(entry["emitted"], entry["seconds"]) / np.divide(perfect["emitted"], perfect["seconds"])
    lengths = [p.num_steps // RECOVERY_WINDOW for p in cell.phases]
    bounds = np.cumsum([-cell.skipped_steps // RECOVERY_WINDOW, *lengths])
    worst = 0
    for begin, end in pairwise(bounds):
        recovered = np.flatnonzero(ratios[max(begin, 0) : end] >= RECOVERED)
        worst = max(worst, int(recovered[0]) if len(recovered) else int(end - max(begin, 0)))
    return RECOVERY_WINDOW * worst


def _worst_recovery(of: dict[str, list[dict]], cell: Cell) -> int | None:
    """Over all seeds; None where perfect estimates played other steps."""
    if cell.static_steps is not None:
        return None
    return max(map(recovery_steps, of["goodput"], of["perfect-estimates"], [cell] * len(of["goodput"])))


def rows(case: str, cells: list[Cell], results: dict[str, dict], seeds: int) -> Iterator[dict]:
    """One row per cell: ratios of goodput to that of perfect estimates, of off, and of the best fixed length."""
    for cell in cells:
        of = {
            policy: [results[_key(case, cell, policy, seed)] for seed in range(seeds)]
            for policy in ("perfect-estimates", *cell.policies)
        }
        rates = {policy: np.array([goodput(entry) for entry in entries]) for policy, entries in of.items()}
        fixed = {policy: rate for policy, rate in rates.items() if policy.startswith(("fixed", "off"))}
        best_fixed = max(fixed, key=lambda policy: fixed[policy].mean(), default=None)
        yield {
            "cell": cell.name,
            "perfect-estimates": rates["goodput"] / rates["perfect-estimates"],
            "off": rates["goodput"] / rates["off"] if "off" in rates else None,
            "best_fixed": best_fixed,
            "fixed": rates["goodput"] / rates[best_fixed] if best_fixed else None,
            "recovery": _worst_recovery(of, cell),
            "mean_k": float(np.mean([entry["mean_k"] for entry in of["goodput"]])),
        }


def print_table(case: str, table_rows: list[dict]) -> None:
    table = Table(title=f"{case}: goodput relative to", box=SIMPLE, title_justify="left")
    table.add_column("cell", no_wrap=True)
    for column in ("perfect", "seeds", "off", "best fixed", "seeds", "which", "recovery", "mean k"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in sorted(table_rows, key=lambda row: row["perfect-estimates"].mean()):
        table.add_row(
            row["cell"],
            f"{row['perfect-estimates'].mean():.3f}",
            f"{row['perfect-estimates'].min():.3f}-{row['perfect-estimates'].max():.3f}",
            "-" if row["off"] is None else f"{row['off'].mean():.3f}",
            "-" if row["fixed"] is None else f"{row['fixed'].mean():.3f}",
            "-" if row["fixed"] is None else f"{row['fixed'].min():.3f}-{row['fixed'].max():.3f}",
            row["best_fixed"] or "-",
            "-" if row["recovery"] is None else str(row["recovery"]),
            f"{row['mean_k']:.2f}",
        )
    console.print(table)


def _key(case: str, cell: Cell, policy: str, seed: int) -> str:
    return f"{case} | {cell.name} | {policy} | {seed}"


def _run_missing(jobs: dict[str, tuple[Cell, str, int]], results: dict, output: Path, processes: int) -> None:
    with output.open("a", encoding="utf-8") as file, ProcessPoolExecutor(processes) as pool:
        futures = {pool.submit(play, *job): key for key, job in jobs.items()}
        try:
            for future in track(as_completed(futures), "simulating", total=len(futures), console=console):
                key = futures[future]
                results[key] = future.result()
                file.write(json.dumps({"key": key} | results[key]) + "\n")
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            console.print(f"interrupted; run the same command to go on from {output}")
            raise typer.Exit(130) from None


def main(
    cases: Annotated[
        list[str],
        typer.Argument(help=f"of {', '.join(CASES)}", default_factory=lambda: list(CASES), show_default="all"),
    ],
    seeds: Annotated[int, typer.Option(min=1, help="runs per cell and policy")] = 20,
    processes: Annotated[int, typer.Option(min=1, help="worker processes")] = 2,
    output: Annotated[Path, typer.Option(help="results, one JSON line per run; continued if it exists")] = Path(
        "controller.jsonl"
    ),
) -> None:
    """Goodput of the controller relative to perfect estimates, to plain decoding and to every fixed length."""
    if unknown := [case for case in cases if case not in CASES]:
        raise typer.BadParameter(f"unknown case {', '.join(unknown)}: use {', '.join(CASES)}")
    lines = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
    results = {entry.pop("key"): entry for entry in map(json.loads, lines)}
    for case in cases:
        cells = list(CASES[case]())
        jobs = {
            _key(case, cell, policy, seed): (cell, policy, seed)
            for cell in cells
            for policy in ("perfect-estimates", *cell.policies)
            for seed in range(seeds)
        }
        _run_missing({key: job for key, job in jobs.items() if key not in results}, results, output, processes)
        print_table(case, list(rows(case, cells, results, seeds)))


if __name__ == "__main__":
    typer.run(main)
