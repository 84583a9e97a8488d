"""All simulated figures: what they measure, and the sections they make."""

from collections.abc import Callable

from lab.paper.latency import latency_figure, latency_section
from lab.paper.lengths import length_figure, length_section
from lab.paper.points import Figure, Point, PointFile
from lab.paper.predictions import goodput_section, prediction_figure, time_section
from lab.paper.published import offline_figure, published_section
from lab.paper.rate_step import rate_step_figure, rate_step_section
from smartspec.report.sections import Section


def simulated_figures() -> tuple[Figure, ...]:
    """Short ones first, so that a run that is ended early has most of them."""
    return length_figure(), prediction_figure(), offline_figure(), rate_step_figure(), latency_figure()


def simulated_sections(file: PointFile) -> tuple[Section, ...]:
    """Of what has been measured so far, in the order of the page. A figure without a point has none."""
    lengths, predictions, offline, rate_step, latency = (file.points(figure) for figure in simulated_figures())
    made: tuple[tuple[list[Point], Callable[[list[Point]], Section]], ...] = (
        (latency, latency_section),
        (latency or offline, lambda _: published_section(latency, offline)),
        (lengths, length_section),
        (rate_step, rate_step_section),
        (predictions, goodput_section),
        (predictions, time_section),
    )
    return tuple(section(points) for points, section in made if points)
