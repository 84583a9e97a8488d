"""The README's plot from docs/results/latency_over_rates.json: python docs/results/plot_latency.py [--output FILE]."""

import json
from pathlib import Path
from typing import Annotated

import matplotlib
import typer

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
CURVES = {"off": ("no speculation (off)", "#888888"), "goodput": ("SmartSpec (goodput)", "#1a6fdf")}


def main(
    output: Annotated[Path, typer.Option(help="The image that is written.")] = FOLDER / "latency_over_rates.png",
) -> None:
    measured = json.loads((FOLDER / "latency_over_rates.json").read_text())
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for policy, (label, colour) in CURVES.items():
        seconds = measured["mean_latency_seconds"][policy]
        axes.plot(measured["requests_per_second"], seconds, marker="o", linewidth=2, color=colour, label=label)
    axes.set(xlim=(0, None), ylim=(0, None), xlabel="requests per second", ylabel="mean latency of a request, seconds")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    # Without a date or a version in it the same data give the same file.
    figure.savefig(output, dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    typer.run(main)
