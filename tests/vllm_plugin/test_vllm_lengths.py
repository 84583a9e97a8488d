"""`vllm_plugin.py lengths`: vLLM's lookup, and the time and tokens of known texts."""

import pytest
from lib.vllm_lengths import OURS, Text, engine, lookup

from smartspec.control import CostCurve

# an answer that copies its prompt, but for its end
REPEATING = Text(tuple(range(100, 130)), tuple(range(100, 128)))
CURVE = CostCurve.linear(0.03, 0.001)


def test_the_longest_match_counts_and_its_first_place():
    assert lookup((1, 2, 3, 4, 9, 9, 2, 3, 5, 2, 3)) == (4, 9, 9, 2, 3)
    assert lookup((1, 2, 3, 4, 7, 2, 3, 5, 1, 2, 3)) == (4, 7, 2, 3, 5)
    assert lookup((2, 3, 5, 8, 1, 2, 3, 6, 1, 2, 3)) == (6, 1, 2, 3)
    assert lookup((1, 2, 3, 4, 5, 3)) == ()


def test_without_drafts_every_token_takes_a_pass(tmp_path):
    speed = engine("off", tmp_path, CURVE, 0.0).serve([REPEATING], at_once=1)
    seconds = 0.03 * 28 + 0.001 * (30 + 27)
    assert speed == pytest.approx(28 / seconds)


def test_drafts_that_are_right_save_passes(tmp_path):
    # Prompt and first token, then the second, which makes the first match, then 26 tokens in passes
    # of 1 + 5.
    speed = engine("fixed:5", tmp_path, CURVE, 0.0).serve([REPEATING], at_once=1)
    seconds = 0.03 * 7 + 0.001 * (30 + 1 + 5 * 6)
    assert speed == pytest.approx(28 / seconds, rel=0.05)


def test_ours_learns_to_do_the_same(tmp_path):
    ours = engine(OURS, tmp_path, CURVE, 0.0)
    for _ in range(20):
        speed = ours.serve([REPEATING] * 4, at_once=2)
    assert speed > 0.9 * engine("fixed:5", tmp_path, CURVE, 0.0).serve([REPEATING] * 4, at_once=2)
