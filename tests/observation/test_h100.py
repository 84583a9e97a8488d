"""From the H100's levels of 1 and 64 requests alone, the others are predicted (docs/observe.md)."""

from pathlib import Path

import pytest
from lib.gpu.observed import device_of, fixed_cells, observation_of, predictions, write_card
from lib.gpu.tables import read_cells

from smartspec.observation.card import Card

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs/results/h100.jsonl"
CARD = ROOT / "docs/results/cards/llama-3.1-8b-eagle3-h100.json"
LEVELS = (1, 64)


@pytest.fixture(scope="module")
def found():
    lines = read_cells([RECORDED])
    cells = fixed_cells(lines)
    seen = [cell for cell in cells if cell["level"] in LEVELS and cell["cell"] != "off"]
    return [
        p
        for p in predictions(cells, observation_of(seen, device_of(lines)), LEVELS)
        if not p.is_seen
    ]


def test_cells_that_were_not_seen(found):
    assert len(found) == 22
    assert sum(abs(p.error) <= 0.05 for p in found) >= 19
    assert abs(found[0].error) < 0.08  # the worst
    between = [p for p in found if p.level <= 64]
    assert all(abs(p.error) <= 0.05 for p in between)


def test_all_lie_in_their_intervals_and_extrapolations_are_named(found):
    assert all(p.low <= p.measured <= p.high for p in found)
    assert {p.known for p in found if p.level > 64} == {"beyond"}


def test_the_best_length_of_a_load_is_found(found):
    """The length that is predicted to be best makes 0.95 of the best measured, at least."""
    for level in (4, 16, 128, 256):
        mine = [p for p in found if p.level == level and p.policy != "off"]
        chosen = max(mine, key=lambda p: p.predicted)
        assert chosen.measured >= 0.95 * max(p.measured for p in mine), level


def test_the_card_is_that_of_the_recorded_steps(tmp_path):
    write_card(read_cells([RECORDED]), tmp_path / "card.json")
    made, kept = Card.read(tmp_path / "card.json"), Card.read(CARD)
    assert made.acceptance == pytest.approx(kept.acceptance, abs=1e-3)
    assert made.latency["target"]["constant"] == pytest.approx(
        kept.latency["target"]["constant"], rel=1e-3
    )
