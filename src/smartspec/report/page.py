"""Sections as one HTML file that needs no other: plots inside it, no script, nothing fetched."""

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from smartspec.bench.report import write_text
from smartspec.report.page_parts import Section, Table
from smartspec.report.svg import draw_svg

LONG_TABLE = 24  # rows; a longer table is folded until a reader opens it
# with its unit, or the sign that there is none
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?: ?[%x])?|-")


def render_page(title: str, sections: Sequence[Section]) -> str:
    """The page as text. All that sections say is escaped."""
    from jinja2 import Environment, StrictUndefined

    plots = [
        [(plot, draw_svg(plot, f"{number} {place}")) for place, plot in enumerate(section.plots)]
        for number, section in enumerate(sections)
    ]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["numeric"] = numeric_columns
    template = files("smartspec.report").joinpath("page.html").read_text(encoding="utf-8")
    shown = list(zip(sections, plots, strict=True))
    return environment.from_string(template).render(
        title=title, sections=shown, long_table=LONG_TABLE
    )


def numeric_columns(table: Table) -> list[bool]:
    """True for each column that has nothing but numbers: these are aligned on the right."""
    return [
        all(_NUMBER.fullmatch(cell) for cell in column) for column in zip(*table.rows, strict=True)
    ]


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write the page whole or not at all. Raises OSError if the file cannot be written."""
    write_text(path, render_page(title, sections))
