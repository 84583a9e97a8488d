"""Plots as SVG text for a page: no file, no font and no script of its own, in the colours of the
text around it."""

import re
from io import StringIO

from smartspec.report.page_parts import Line, Plot

INK = "#010203"  # becomes the page's own colour of text, light or dark
DASHED = {"color": INK, "linewidth": 1, "linestyle": "--"}
# Okabe and Ito's, for all eyes, with grey for yellow.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, "#888888")
MARKERS = "osD^vPX*"
LEGEND_WIDTH = 100  # characters beside each other
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    ),
}


def draw_svg(plot: Plot, salt: str) -> str:
    """The plot as an <svg> element. salt: one of its own for each plot of a page, so that no two
    share an id."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"svg.hashsalt": salt}):
        figure = Figure(figsize=(6.2, 3.7), layout="constrained")
        axes = figure.add_subplot()
        if plot.names:
            figure.set_figheight(_draw_beside_names(axes, plot))
        else:
            _draw_curves(axes, plot)
        axes.grid(alpha=0.25)
        if plot.lines and (len(plot.lines) > 1 or not plot.names):
            _add_legend(figure, [line.label for line in plot.lines])
        text = StringIO()
        figure.savefig(
            text, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    return _for_a_page(text.getvalue())


def _for_a_page(svg: str) -> str:
    """The element alone, as wide as what it stands in, without ids that nothing refers to."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:width|height)="[^"]*"', "", svg, count=2)  # its own come first
    used = {*re.findall(r'(?:href="|url\()#([^")]+)', svg)}
    return re.sub(
        r' id="([^"]*)"', lambda found: found.group() if found.group(1) in used else "", svg
    )


def _add_legend(figure, labels: list[str]) -> None:
    """Above the axes, so that it covers no curve."""
    columns = max(1, LEGEND_WIDTH // (max(map(len, labels)) + 6))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * rows)
    figure.legend(loc="outside upper left", ncols=columns, frameon=False, fontsize=9)


def _look(number: int) -> tuple[str, str]:
    """Colour and marker of a line."""
    return COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]


def _draw_curves(axes, plot: Plot) -> None:
    for number, line in enumerate(plot.lines):
        color, marker = _look(number)
        style = {"color": color, "marker": marker, "markersize": 4, "linewidth": 1.6}
        axes.plot(line.x, line.y, label=line.label, **style)
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.15, linewidth=0)
    if plot.reference is not None:
        axes.axhline(plot.reference, **DASHED)
    for mark in plot.marks:
        axes.axvline(mark, **DASHED)
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    if plot.log_x:
        _log_x(axes, [x for line in plot.lines for x in line.x])
    if plot.log_y:
        _log_y(axes)
    elif all(y >= 0 for line in plot.lines for y in (*line.y, *line.low)):
        axes.set_ylim(bottom=0)


def _log_x(axes, values: list[float]) -> None:
    """A logarithmic axis with a tick at each value that was measured, as long as these are few."""
    axes.set_xscale("log")
    if len(ticks := sorted(set(values))) <= 8:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)


def _log_y(axes) -> None:
    """A logarithmic axis with few ticks, written as plain numbers."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(
        MaxNLocator(6, steps=(1, 2, 5, 10)) if high < 10 * low else LogLocator(subs=(1, 2, 5))
    )
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def _draw_beside_names(axes, plot: Plot) -> float:
    """Names on the vertical axis, values along the horizontal one. Returns the height that this
    needs, in inches."""
    beside = {
        x: [number for number, line in enumerate(plot.lines) if x in line.x]
        for x in range(len(plot.names))
    }
    for number, line in enumerate(plot.lines):
        color, marker = _look(number)
        style = {"color": color, "fmt": marker, "markersize": 5, "capsize": 2, "linewidth": 1.4}
        places = [x + _shift(beside[int(x)], number) for x in line.x]
        axes.errorbar(line.y, places, xerr=_errors(line), label=line.label, **style)
    if plot.reference is not None:
        axes.axvline(plot.reference, **DASHED)
    axes.set_yticks(range(len(plot.names)), plot.names)
    axes.set_ylim(len(plot.names) - 0.5, -0.5)
    axes.set(xlabel=plot.y_label, ylabel=plot.x_label)
    return 0.32 * len(plot.names) * max(1, *map(len, beside.values())) ** 0.5 + 1.6


def _shift(beside: list[int], number: int) -> float:
    """The shift of a point from the middle of its name, where the lines of these numbers have
    one."""
    return (beside.index(number) - (len(beside) - 1) / 2) * 0.6 / len(beside)


def _errors(line: Line) -> list[list[float]] | None:
    if not line.low:
        return None
    below = [max(0.0, y - low) for y, low in zip(line.y, line.low, strict=True)]
    above = [max(0.0, high - y) for y, high in zip(line.y, line.high, strict=True)]
    return [below, above]
