"""The parts of a report's page. What measures makes these records; `page.py` alone knows HTML and
plots."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A curve of a plot. x, y: the same length. low, high: bounds of an interval around each y, or
    both empty."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Plot:
    """Curves over one pair of axes. The caption says in one sentence what a reader should see."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    caption: str = ""
    log_x: bool = False
    log_y: bool = False
    # x counts these, and each line is points beside their names, the first on top
    names: tuple[str, ...] = ()
    reference: float | None = None  # a value of y that gets a line of its own, as 1 among ratios
    marks: tuple[float, ...] = ()  # values of x that get one, where something changes


@dataclass(frozen=True)
class Table:
    """Rows of text, each as long as the header. The worst row comes first."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    title: str
    text: tuple[str, ...]  # paragraphs
    plots: tuple[Plot, ...] = ()
    tables: tuple[Table, ...] = ()
    command: str = ""  # what makes these figures again
