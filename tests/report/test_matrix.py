import pytest
from report_cases import CHAT, CODE, matrix

from smartspec.report.matrix import Cell, Load, Matrix, Variant, differences


def test_a_round_is_one_cell_with_all_variants_and_its_order_turns():
    rounds = list(matrix().rounds(2))
    assert [(runs[0].cell, runs[0].repetition) for runs in rounds] == [
        (CHAT, 0),
        (CODE, 0),
        (CHAT, 1),
        (CODE, 1),
    ]
    orders = [[run.variant for run in runs] for runs in rounds]
    forward = ["off", "fixed:3", "goodput"]
    assert orders == [forward, forward[::-1], forward[::-1], forward]


def test_what_differs_is_named():
    there = matrix(max_tokens=32, settings={"model": None}).description()
    other = Matrix(
        (Variant("off", "off", "none"),),
        (CHAT, Cell("rag", Load(rate=1))),
        64,
        settings={"model": "a"},
    )
    found = differences(there, other.description())
    assert found == [
        "variants: fixed:3 (policy fixed:3), goodput (policy goodput) only there",
        "cells: code, 2 at once only there; rag, 1/s only here",
        "max_tokens: 32 there, 64 here",
        "model: None there, a here",
    ]
    assert not differences(there, there)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: matrix(variants=[Variant("a", "off"), Variant("a", "goodput")]),
            "two variants are named a",
        ),
        (lambda: matrix(cells=[]), "nothing to measure"),
        (lambda: Load(rate=-1.0), "got -1.0"),
        (lambda: Load(concurrency=0), "got 0"),
    ],
)
def test_a_matrix_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
