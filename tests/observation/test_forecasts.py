"""What an observation says of loads and lengths that were not seen, on an engine that is known."""

from dataclasses import replace

import numpy as np
import pytest
from engines import KNOWN, observe

from smartspec.observation.forecast import INTERVAL, OFF, Forecasts, loads_up_to
from smartspec.observation.records import Observation
from smartspec.observation.report import longest_of, summary, text

LENGTHS = (0, 1, 3, 5)


@pytest.fixture(scope="module")
def forecasts() -> Forecasts:
    """From two loads."""
    return Forecasts(
        observe([(level, length) for level in (1, 64) for length in LENGTHS]), 5, num_draws=20
    )


@pytest.mark.parametrize("requests", [1, 4, 16, 64, 128])
@pytest.mark.parametrize("length", LENGTHS)
def test_other_loads_are_predicted_within_five_percent(forecasts, requests, length):
    predicted = forecasts.likeliest.tokens_per_second(requests, length)
    doubled = requests > 64  # beyond what was seen
    assert predicted == pytest.approx(KNOWN.speed(requests, length), rel=0.10 if doubled else 0.05)


def test_no_speculation_has_no_draft_pass(forecasts):
    predicted = forecasts.likeliest.tokens_per_second(16, OFF)
    assert predicted == pytest.approx(KNOWN.speed(16, OFF), rel=0.05)
    assert predicted > forecasts.likeliest.tokens_per_second(16, 0)


def test_what_is_extrapolated_is_named(forecasts):
    assert forecasts.known(64, 3) == "seen"
    assert forecasts.known(16, 3) == forecasts.known(64, 2) == "between"
    assert forecasts.known(200, 1) == "beyond"  # three times the largest load
    one = Forecasts(observe([(64, 3)]), 5, num_draws=1)
    assert one.known(64, 3) == "seen"
    assert {one.known(64, 5), one.known(64, 1), one.known(4, 3)} == {"beyond"}


def test_shorter_drafts_without_passes_are_known():
    """A lookup's drafts cost what is verified of them, and their first tokens were seen. Steps
    without a draft are those of no speculation, where there were such."""
    drafts = observe([(1, 5), (64, 5)], setup={"has_passes": False})
    seen = Forecasts(drafts, 5, num_draws=1)
    assert {seen.known(64, length) for length in (OFF, 0, 1, 3)} == {"beyond"}
    both = Observation.merged([drafts, observe([(64, 0)], setup={"has_passes": False})])
    seen = Forecasts(both, 5, num_draws=1)
    assert {seen.known(64, length) for length in (OFF, 0)} == {"seen"}
    assert {seen.known(16, OFF), *(seen.known(64, length) for length in (1, 3))} == {"between"}
    with_passes = Forecasts(observe([(64, length) for length in LENGTHS]), 5, num_draws=1)
    # a pass always ran
    assert (with_passes.known(64, 0), with_passes.known(64, OFF)) == ("seen", "beyond")


def test_a_single_length_leaves_wide_intervals():
    both, one = (
        Forecasts(
            observe([(level, length) for level in (1, 64) for length in lengths]), 5, num_draws=20
        )
        for lengths in (LENGTHS, (3,))
    )

    def width(forecasts):
        speeds = [draw.tokens_per_second(64, 1) for draw in forecasts.draws]
        low, high = np.quantile(speeds, INTERVAL)
        return (high - low) / low

    assert width(one) > 2 * width(both)


def test_the_crossover_is_where_drafts_stop_to_pay():
    seen = [(level, length) for level in (1, 16, 64, 128, 256) for length in LENGTHS]
    seen = observe(seen, rates={"": 0.4})
    found = Forecasts(seen, 5, num_draws=0).likeliest.crossover(256)
    speed = replace(KNOWN, rates={"": 0.4}).speed
    gains = {n: max(speed(n, k) for k in range(1, 6)) - speed(n, OFF) for n in loads_up_to(256)}
    last = max(n for n, gain in gains.items() if gain > 0)
    assert found is not None and last / 1.3 <= found <= 1.3 * min(n for n in gains if n > last)


def test_without_a_crossover_there_is_none():
    seen = [(level, length) for level in (1, 4) for length in LENGTHS]
    good = observe(seen, rates={"": 0.95})
    assert Forecasts(good, 5, num_draws=0).likeliest.crossover(8) is None


def test_regret_is_that_of_the_present_setting():
    """A third of the steps each: with drafts of five tokens, one and none."""
    best, mixed = (
        summary(Forecasts(observe([(4, k) for k in lengths], rates={"": 0.9}), 5, num_draws=5))
        for lengths in ((5,), (5, 1, 0))
    )
    mixed = mixed["regret"]
    speeds = {k: replace(KNOWN, rates={"": 0.9}).speed(4, k) for k in (5, 1, 0)}
    tokens = {k: sum(0.9**d for d in range(k + 1)) for k in speeds}
    now = sum(tokens.values()) / sum(tokens[k] / speeds[k] for k in speeds)
    assert best["regret"]["value"] < 0.02
    assert mixed["value"] == pytest.approx(1 - now / speeds[5], abs=0.03)
    assert mixed["low"] <= mixed["value"] <= mixed["high"]


def test_the_text_has_every_load_and_says_what_is_beyond(forecasts):
    found = summary(forecasts)
    shown = text(found)
    assert longest_of(forecasts.observation) == 5
    for load in found["loads"]:
        assert f"{load['now']:,.0f}" in shown
    assert "crossover: " in shown and "present setting" in shown
    assert "interpolated: " in shown


def test_the_drafters_kv_is_told_with_what_it_costs():
    kv = {"tokens": 60_000, "drafter_share": 0.25}
    found = summary(Forecasts(observe([(4, 3)], setup={"kv": kv}), 3, num_draws=1))
    assert found["drafter_kv"]["tokens_without"] == 80_000
    length = found["traffic"]["mean_prompt_tokens"] + found["traffic"]["mean_output_tokens"]
    assert found["drafter_kv"]["requests_without"] == pytest.approx(80_000 / length, rel=1e-3)

    assert (
        "the drafter's KV takes 25.0% of the memory for KV: 60,000 tokens fit, 80,000 without it"
        in text(found)
    )
    assert summary(Forecasts(observe([(4, 3)]), 3, num_draws=1))["drafter_kv"] is None


def test_too_little_is_said_so():
    with pytest.raises(ValueError, match="3 steps were observed: too few"):
        Forecasts(observe([(4, 3)], steps=3), 5)
    silent = observe([(4, 3)])
    silent.outcomes.clear()
    with pytest.raises(ValueError, match="no draft was verified"):
        Forecasts(silent, 5)
