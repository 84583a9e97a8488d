"""All simulated figures: what they measure, and the sections they make."""

from collections.abc import Callable

from lab.paper.capacity import capacities, capacity_figure
from lab.paper.cells import Effort
from lab.paper.change import change_figure, change_section
from lab.paper.latency import latency_figure, latency_section
from lab.paper.lengths import curve_figure, curve_section, length_figure, length_section
from lab.paper.points import Figure, Point, PointFile
from lab.paper.predictions import goodput_section, prediction_figure, time_section
from lab.paper.published import offline_figure, published_section
from lab.paper.rate_step import MIXED, rate_step_figure, rate_step_section
from lab.paper.step_fit import fit_section, measured_steps
from smartspec.report.page_parts import Section


def simulated_figures(file: PointFile, effort: Effort) -> tuple[Figure, ...]:
    """Short ones first, so that a run that is ended early has most of them. Rates follow from the
    capacities that the file knows: until they are measured, there is no point at these rates."""
    known = capacities(file.points(capacity_figure(effort)))
    steps = (
        rate_step_figure(effort, known[MIXED]) if MIXED in known else Figure("rate_step", (), str)
    )
    lengths = length_figure(num_steps=effort.num_steps)
    of_rates = steps, latency_figure(effort, known)
    return (
        curve_figure(),
        lengths,
        change_figure(),
        prediction_figure(),
        offline_figure(),
        *of_rates,
    )


def simulated_sections(file: PointFile, effort: Effort) -> tuple[Section, ...]:
    """Of what has been measured so far, in the order of the page. A figure without a point has
    none."""
    curves, lengths, change, predictions, offline, rate_step, latency = (
        file.points(figure) for figure in simulated_figures(file, effort)
    )
    made: tuple[tuple[list[Point], Callable[[list[Point]], Section]], ...] = (
        (latency, latency_section),
        (latency or offline, lambda _: published_section(latency, offline)),
        (curves, curve_section),
        (lengths, length_section),
        (rate_step, rate_step_section),
        (predictions, goodput_section),
        (predictions, time_section),
        (change, change_section),
    )
    return (*(section(points) for points, section in made if points), fit_section(measured_steps()))
