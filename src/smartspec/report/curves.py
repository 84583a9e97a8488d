"""The plots on the page of a measured matrix."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, geometric_mean

import numpy as np

from smartspec.report.folder import Runs, runs_of
from smartspec.report.matrix import Cell, Load, Matrix
from smartspec.report.page_parts import Line, Plot
from smartspec.report.results import CellFigures
from smartspec.report.speed_ups import SpeedUp

PARTS_OF_STEP = 4  # points of a curve over time in each step of a load


def speed_up_plot(ours: str, other: str, ratios: Sequence[SpeedUp]) -> Plot:
    """A line of points for each load, beside the workloads; the workload with the worst ratio on
    top."""
    # the worst comes first already
    workloads = list(dict.fromkeys(each.cell.workload for each in ratios))
    loads = sorted({each.cell.load for each in ratios}, key=_order_of_load)
    lines = []
    for load in loads:
        of_load = sorted(
            (each for each in ratios if each.cell.load == load), key=lambda e: e.cell.workload
        )
        x = tuple(float(workloads.index(each.cell.workload)) for each in of_load)
        values = [
            tuple(getattr(each, part) for each in of_load) for part in ("ratio", "low", "high")
        ]
        lines.append(Line(load.name, x, *values))
    return Plot(
        f"Speed-up of {ours} over {other}",
        "",
        "times as fast (1: no difference)",
        tuple(lines),
        "Points right of the dashed line: ours is faster. A bar that crosses it: inside the noise.",
        names=tuple(workloads),
        reference=1.0,
    )


def _order_of_load(load: Load) -> tuple:
    """Closed loops first."""
    return load.concurrency or math.inf, load.rate or math.inf, load.name


def throughput_plots(figures: Sequence[CellFigures]) -> tuple[Plot, ...]:
    """Geometric mean over the workloads that every variant was measured on at every number of
    requests; none without closed loops."""
    figures = [each for each in figures if each.cell.load.concurrency is not None]
    if not figures:
        return ()
    variants = list(dict.fromkeys(each.variant for each in figures))
    levels = sorted({each.cell.load.concurrency for each in figures})
    rates = {
        (e.variant, e.cell.workload, e.cell.load.concurrency): e.tokens_per_second for e in figures
    }
    everywhere = [
        workload
        for workload in dict.fromkeys(each.cell.workload for each in figures)
        if all(
            rates.get((variant, workload, level), 0) > 0 for variant in variants for level in levels
        )
    ]
    lines = []
    for variant in variants if everywhere else []:
        means = [
            geometric_mean([rates[variant, workload, level] for workload in everywhere])
            for level in levels
        ]
        lines.append(Line(variant, tuple(map(float, levels)), tuple(means)))
    caption = f"Geometric mean over the workloads: {', '.join(everywhere)}."
    labels = "Tokens per second", "requests at once", "tokens per second"
    return (Plot(*labels, tuple(lines), caption, log_x=True),)


def latency_plots(matrix: Matrix, runs: Runs) -> tuple[Plot, ...]:
    """Mean latency over the rate, one plot for each workload."""
    open_cells = [cell for cell in matrix.cells if cell.load.rate is not None]
    plots = []
    for workload in dict.fromkeys(cell.workload for cell in open_cells):
        cells = {c.load.rate: c.name for c in open_cells if c.workload == workload}
        lines = [_latency_line(variant.name, cells, runs) for variant in matrix.variants]
        lines = [line for line in lines if line.x]
        if lines:
            title = f"Mean end-to-end latency: {workload}, Poisson arrivals"
            caption = "Shaded: from the fastest to the slowest repetition."
            plots.append(Plot(title, "requests per second", "seconds", tuple(lines), caption))
    return tuple(plots)


def _latency_line(variant: str, cells: dict[float, str], runs: Runs) -> Line:
    means = {
        rate: [
            fmean(record.end_to_end_seconds for record in run.records)
            for run in runs_of(runs, variant, name)
            if run.records
        ]
        for rate, name in sorted(cells.items())
    }
    return _line(variant, means)


def _line(variant: str, means: Mapping[float, Sequence[float]]) -> Line:
    """means: of the repetitions, by x."""
    known = {x: some for x, some in means.items() if some}
    bounds = (tuple(map(of, known.values())) for of in (fmean, min, max))
    return Line(variant, tuple(known), *bounds)


def over_time_plots(matrix: Matrix, runs: Runs) -> tuple[Plot, ...]:
    """Mean latency over the time of arrival, one plot for each cell whose load changes in steps."""
    plots = []
    for cell in matrix.cells:
        ends = np.cumsum([step.seconds for step in cell.load.steps]).tolist()
        lines = [
            _line_over_time(variant.name, cell, [0.0, *ends], runs)
            for variant in matrix.variants
            if ends
        ]
        lines = [line for line in lines if line.x]
        if lines:
            title = f"Mean end-to-end latency: {cell.load.name}"
            caption = "Dashed: a step ends. Shaded: from the fastest to the slowest repetition."
            labels = ("seconds from the start at which requests arrive", "seconds")
            plots.append(Plot(title, *labels, tuple(lines), caption, marks=tuple(ends[:-1])))
    return tuple(plots)


def _line_over_time(variant: str, cell: Cell, bounds: Sequence[float], runs: Runs) -> Line:
    """A point for each part of a step. bounds: where the steps begin, and the last ends."""
    edges = [bounds[0]]
    for begin, end in pairwise(bounds):
        edges += np.linspace(begin, end, PARTS_OF_STEP + 1)[1:].tolist()
    records = [run.records for run in runs_of(runs, variant, cell.name)]
    means = {
        (begin + end) / 2: [
            fmean(of_part)
            for some in records
            if (of_part := [r.end_to_end_seconds for r in some if begin <= r.start_seconds < end])
        ]
        for begin, end in pairwise(edges)
    }
    return _line(variant, means)
