"""Plots as SVG text for a page: no file, no font and no script of its own, in the colours of the text around it."""

import re
from io import StringIO

from smartspec.report.sections import Line, Plot

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito: for all eyes
MARKERS = "osD^vP"
INK = "#010203"  # becomes the page's own colour of text, light or dark
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def draw_svg(plot: Plot, salt: str) -> str:
    """The plot as an <svg> element. salt: one of its own for each plot of a page, so that no two share an id."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"svg.hashsalt": salt}):
        height = 0.32 * len(plot.names) * max(1, len(plot.lines)) ** 0.5 + 1.6 if plot.names else 3.7
        figure = Figure(figsize=(6.2, height), layout="constrained")
        axes = figure.add_subplot()
        if plot.names:
            _draw_beside_names(axes, plot)
        else:
            _draw_curves(axes, plot)
        axes.grid(alpha=0.25)
        if len(plot.lines) > 1 or not plot.names:
            axes.legend(frameon=False, fontsize=9)
        text = StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_a_page(text.getvalue())


def _for_a_page(svg: str) -> str:
    """The element alone, as wide as what it stands in, without ids that nothing refers to."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", svg)
    svg = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", svg)
    used = {*re.findall(r'(?:href="|url\()#([^")]+)', svg)}
    return re.sub(r' id="([^"]*)"', lambda found: found.group() if found.group(1) in used else "", svg)


def _draw_curves(axes, plot: Plot) -> None:
    for number, line in enumerate(plot.lines):
        color = COLORS[number % len(COLORS)]
        style = {"color": color, "marker": MARKERS[number % len(MARKERS)], "markersize": 4, "linewidth": 1.6}
        axes.plot(line.x, line.y, label=line.label, **style)
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.15, linewidth=0)
    if plot.reference is not None:
        axes.axhline(plot.reference, color=INK, linewidth=1, linestyle="--")
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    if plot.log_x:
        _log(axes, "x", [x for line in plot.lines for x in line.x])
    if plot.log_y:
        axes.set_yscale("log")
    elif all(y >= 0 for line in plot.lines for y in (*line.y, *line.low)):
        axes.set_ylim(bottom=0)


def _log(axes, which: str, values: list[float]) -> None:
    """A logarithmic axis with a tick at each value that was measured, as long as these are few."""
    axes.set_xscale("log")
    if len(ticks := sorted(set(values))) <= 8:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)


def _draw_beside_names(axes, plot: Plot) -> None:
    """Names on the vertical axis, values along the horizontal one."""
    for number, line in enumerate(plot.lines):
        shift = (number - (len(plot.lines) - 1) / 2) * 0.6 / len(plot.lines)
        style = {"color": COLORS[number % len(COLORS)], "fmt": MARKERS[number % len(MARKERS)], "markersize": 5}
        places = [x + shift for x in line.x]
        axes.errorbar(line.y, places, xerr=_errors(line), label=line.label, capsize=2, linewidth=1.4, **style)
    if plot.reference is not None:
        axes.axvline(plot.reference, color=INK, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(plot.names)), plot.names)
    axes.set_ylim(len(plot.names) - 0.5, -0.5)
    axes.set(xlabel=plot.y_label, ylabel=plot.x_label)
    if plot.log_y:
        axes.set_xscale("log")


def _errors(line: Line) -> list[list[float]] | None:
    if not line.low:
        return None
    below = [max(0.0, y - low) for y, low in zip(line.y, line.low, strict=True)]
    above = [max(0.0, high - y) for y, high in zip(line.y, line.high, strict=True)]
    return [below, above]
