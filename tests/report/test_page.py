"""The page of a report: one file, everything in it, everything escaped."""

import re
from html.parser import HTMLParser

import pytest

from smartspec.report.page import LONG_TABLE, numeric_columns, render_page, write_page
from smartspec.report.page_parts import Line, Plot, Section, Table
from smartspec.report.svg import draw_svg

NASTY = '<script>alert("&")</script>'
OFF = Line("off", (1.0, 2.0), (0.3, 0.4), (0.2, 0.3), (0.4, 0.5))
CURVES = Plot(
    "Latency",
    "requests per second",
    "seconds",
    (OFF, Line(NASTY, (1.0, 2.0), (0.1, 0.2))),
    "lower is better",
    log_x=True,
    log_y=True,
)
RATIOS = Line("off", (0.0, 1.0), (1.2, 0.9), (1.1, 0.8), (1.3, 1.0))
POINTS = Plot("Ratios", "", "ratio", (RATIOS,), names=("chat", "a <b>"), reference=1.0)


class Reader(HTMLParser):
    """Elements that were opened and not closed, and all attributes of all elements."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self):
        super().__init__()
        self.open, self.attributes, self.elements = [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    table = Table(NASTY, ("cell", "ratio"), (("chat", "1.02"), (NASTY, "-")), note="worst first")
    rows = tuple((f"row {i}", f"{i}") for i in range(LONG_TABLE + 1))
    long = Table("all", ("name", "figure"), rows)
    sections = [
        Section(
            "First",
            ("A paragraph & more.",),
            (CURVES, POINTS),
            (table,),
            'smartspec report --rate "1"',
        ),
        Section("Second", (), (CURVES,), (long,)),
        Section("Third", ("Text.",)),
    ]
    return render_page("A title", sections)


def test_a_page_is_sound_html_without_scripts_and_needs_no_other_file(page):
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    assert "script" not in reader.elements and reader.elements.count("svg") == 3
    fetched = [
        value for name, value in reader.attributes if name in ("src", "href", "xlink:href", "data")
    ]
    assert fetched and all(value.startswith("#") for value in fetched)
    assert "url(http" not in page and "@import" not in page
    assert "<!DOCTYPE html>" in page and page.count("<!DOCTYPE") == page.count("<style") - 3 == 1


def test_plots_share_no_ids(page):
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) > 3 and len(ids) == len(set(ids))


def test_what_sections_say_is_escaped_and_drawn_in_the_colour_of_text(page):
    assert NASTY not in page and "&lt;script&gt;" in page
    assert "currentColor" in page.replace("currentcolor", "currentColor") and "#010203" not in page
    assert "smartspec report --rate &#34;1&#34;" in page


def test_numbers_are_aligned_and_long_tables_are_folded(page):
    assert (
        '<td class="number">1.02</td>' in page
        and '<td class="number">-</td>' in page
        and "<td>chat</td>" in page
    )
    assert page.count("<details>") == 1 and f"({LONG_TABLE + 1} rows)" in page


def test_every_curve_has_a_look_of_its_own_and_ticks_are_plain_numbers():
    lines = tuple(Line(f"fixed:{k}", (1.0, 2.0), (1.0 + k, 3.0)) for k in range(8))
    svg = draw_svg(Plot("", "rate", "seconds", lines, log_y=True, marks=(1.5,)), "salt")
    looks = re.findall(r"fill: none; stroke: ([^;]+); stroke-width: 1.6", svg)
    assert len(set(looks)) == 8 and svg.count("stroke-dasharray") == 1
    assert ">4<" in svg and "mathdefault" not in svg


def test_a_column_with_anything_else_is_not_numeric():
    rows = (("1 at once", "1.5 x", "3"), ("4 at once", "-", "b"))
    assert numeric_columns(Table("", ("a", "b", "c"), rows)) == [False, True, False]
    assert numeric_columns(Table("", ("a",), ())) == []


def test_a_page_is_written_whole_and_the_same_twice(tmp_path):
    sections = [Section("One", ("Text.",), (CURVES,))]
    for name in ("a.html", "b.html"):
        write_page(tmp_path / name, "A title", sections)
    assert (tmp_path / "a.html").read_text() == (tmp_path / "b.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]
    with pytest.raises(OSError):
        write_page(tmp_path / "none" / "a.html", "A title", sections)
