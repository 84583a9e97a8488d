"""What the page says about made-up runs: the worst first, and nothing hidden."""

import json

import pytest
from report_cases import CHAT, CODE, VARIANTS, matrix, measured, record

from smartspec.report.matrix import CHANGING, Cell, Load, Step, Variant
from smartspec.report.page import render_page
from smartspec.report.results import Results, our_variant
from smartspec.report.sections import sections_of

OPEN = [Cell("mixed", Load(rate=rate)) for rate in (1, 2)]
FIVE = Variant("fixed:5", "fixed:5")
SECONDS = {"off": 2.0, "fixed:3": 1.2, "fixed:5": 1.5, "goodput": 1.0}


def results(
    cells=(CHAT, CODE), variants=(*VARIANTS, FIVE), changed=None, failed=(), repetitions=3
) -> Results:
    """changed: seconds of a variant in a cell."""
    runs = [
        measured(v.name, cell, r, [(changed or {}).get((v.name, cell), SECONDS[v.name])] * 4)
        for v in variants
        for cell in cells
        for r in range(repetitions)
        if (v.name, cell) not in failed
    ]
    broken = [measured(*key, 0, [], failure="it died") for key in failed]
    return made(matrix(cells, variants), runs, broken)


def made(of, runs=(), broken=()) -> Results:
    by_key = ({run.key: run for run in some} for some in (runs, broken))
    return Results(of, *by_key, {"cpu": "a cpu"}, "smartspec report", "goodput")


def by_title(of: Results) -> dict:
    return {section.title: section for section in sections_of(of)}


def glance(of: Results):
    return sections_of(of)[0]


def test_the_first_section_says_who_is_faster_and_where_not():
    section = glance(results(changed={("goodput", CODE): 2.5}))
    text = "\n".join(section.text)
    assert (
        "goodput against off, 2 cells: slower in 1, inside the noise in 0, faster in 1. Worst: "
        "code, 2 at once, " in text
    )
    assert "0.80 x (0.80 to 0.80; slower)" in text and "Geometric mean: 1.26." in text
    assert "Of 72 pairs of answers that were compared, 100.0% are the same text." in text
    rows = section.tables[0].rows
    assert [row[3] for row in rows] == sorted((row[3] for row in rows), key=float)
    assert rows[0][:4] == ("code", "2 at once", "fixed:3", "0.48")
    assert len(rows) == 2 * 3


def test_of_one_cell_nothing_is_counted():
    text = glance(results([CHAT], changed={("goodput", CHAT): 2.5})).text
    assert "goodput against off: chat, 2 at once, 0.80 x (0.80 to 0.80; slower)." in text


def test_the_best_fixed_length_is_named_where_there_are_several():
    of = results(changed={("fixed:5", CODE): 0.9})
    text = "\n".join(glance(of).text)
    assert (
        "goodput against best fixed length, 2 cells: slower in 1, inside the noise in 0, faster in "
        "1." in text
    )
    best = [each for each in of.to_json()["speed_ups"] if each["is_best_fixed"]]
    assert [(each["workload"], each["other"]) for each in best] == [
        ("code", "fixed:5"),
        ("chat", "fixed:3"),
    ]
    assert "best fixed" not in "\n".join(glance(results(variants=VARIANTS)).text)


def test_what_failed_and_what_is_missing_is_said():
    of = results(failed=[("off", CHAT)], repetitions=2)
    text = "\n".join(glance(of).text)
    assert "1 of 2 cells are not complete" in text and "1 runs failed" in text
    assert (
        "fewer than 3 repetitions" in text
        and "too few repetitions in 2" in text
        and "too few repetitions)." in text
    )
    assert by_title(of)["What failed"].tables[0].rows == ((CHAT.name, "off", "1", "it died"),)


def test_nothing_measured_is_still_a_page():
    of = made(matrix())
    page = render_page("SmartSpec report", sections_of(of))
    assert "There is no cell yet in which both goodput and another variant were measured." in page
    assert json.dumps(of.to_json(), allow_nan=False)


def test_rates_are_curves():
    sections = by_title(results([CHAT, *OPEN]))
    (poisson,) = sections["Latency by arrival rate"].plots
    assert [line.label for line in poisson.lines] == ["off", "fixed:3", "goodput", "fixed:5"]
    assert poisson.lines[0].x == (1, 2) and poisson.lines[0].y == pytest.approx((2.0, 2.0))
    (throughput,) = sections["Tokens per second by requests at once"].plots
    assert (
        throughput.lines[2].y == pytest.approx((40.0,))
        and "the workloads: chat." in throughput.caption
    )


def test_steps_are_curves_over_time_with_their_bounds():
    cell = Cell(CHANGING, Load(steps=(Step("chat", 1, 8), Step("code", 2, 4))))
    arrivals = ((0.5, 1.0), (1.5, 3.0), (7.0, 2.0), (8.0, 4.0), (11.9, 5.0))  # and seconds
    runs = []
    for name, repetition, factor in (
        ("off", 0, 1),
        ("off", 1, 1.5),
        ("fixed:3", 0, 2),
        ("fixed:3", 1, 2.5),
    ):
        records = [
            record(i, factor * seconds, start_seconds=at)
            for i, (at, seconds) in enumerate(arrivals)
        ]
        runs.append(measured(name, cell, repetition, [], records=tuple(records)))
    sections = by_title(made(matrix([CHAT, cell]), runs))
    (plot,) = sections["Latency over time"].plots
    assert plot.marks == (8.0,) and "chat at 1/s for 8 s, then code at 2/s for 4 s" in plot.title
    off, fixed = plot.lines
    assert (off.label, fixed.label) == ("off", "fixed:3") and off.x == fixed.x == (
        1.0,
        7.0,
        8.5,
        11.5,
    )
    assert off.y == pytest.approx((2.5, 2.5, 5.0, 6.25))
    assert fixed.low == pytest.approx((4, 4, 8, 10)) and fixed.high == pytest.approx(
        (5, 5, 10, 12.5)
    )
    assert "Latency over time" in render_page("SmartSpec report", [sections["Latency over time"]])


def test_ours_is_the_likely_one():
    assert our_variant(matrix()) == "goodput"
    plain = [Variant(name, base_url="http://x") for name in ("with-SmartSpec", "plain")]
    assert our_variant(matrix(variants=plain)) == "with-SmartSpec"
    assert our_variant(matrix(variants=plain[1:])) == "plain"
