"""The README's plot from docs/report/summary.json: python docs/report/plot_speed_ups.py [--output
FILE]."""

import json
from pathlib import Path
from typing import Annotated

import matplotlib
import typer

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
OTHER = "off"
LOADS = {
    "1 at once": ("#0072b2", "o"),
    "4 at once": ("#d55e00", "s"),
    "16 at once": ("#009e73", "D"),
}


def main(
    output: Annotated[Path, typer.Option(help="The image that is written.")] = FOLDER
    / "speed_ups.png",
) -> None:
    measured = json.loads((FOLDER / "summary.json").read_text())["speed_ups"]
    cells = {(each["workload"], each["load"]): each for each in measured if each["other"] == OTHER}
    workloads = sorted({workload for workload, load in cells if load in LOADS})
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for number, (load, (colour, marker)) in enumerate(LOADS.items()):
        found = [cells[workload, load] for workload in workloads]
        ratios = [each["ratio"] for each in found]
        below = [each["ratio"] - each["interval"][0] for each in found]
        above = [each["interval"][1] - each["ratio"] for each in found]
        places = [place + 0.2 * (number - 1) for place in range(len(workloads))]
        style = {"color": colour, "fmt": marker, "capsize": 2, "markersize": 5}
        axes.errorbar(ratios, places, xerr=[below, above], label=load, **style)
    axes.axvline(1.0, color="black", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(workloads)), workloads)
    axes.set(ylim=(len(workloads) - 0.5, -0.5), xlabel="times as fast as without speculation")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, title="requests")
    # Without a date or a version in it the same data give the same file.
    figure.savefig(output, dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    typer.run(main)
