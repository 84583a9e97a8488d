"""The guard on numbers: it must convict a loss in bounded time, and leave a gain alone."""

import numpy as np
import pytest

from smartspec.control.goodput.guard import Guard
from smartspec.control.goodput.settings import GuardSettings

ROWS = 8
SETTINGS = GuardSettings()


def play(guard, num_steps, gain, seed=0, off_every=16, off_seconds=0.05, understated=1.0):
    """Steps that speculate (or not, now and then) with that true gain; returns how many until the guard trips.

    understated: true time without drafts over the predicted one.
    """
    rng = np.random.default_rng(seed)
    true_off = off_seconds * understated
    for step in range(num_steps):
        if step % off_every == 0:
            guard.observe(
                ROWS, ROWS, true_off * np.exp(0.03 * rng.standard_normal()), off_seconds, ROWS / off_seconds, False
            )
            continue
        emitted = ROWS + rng.binomial(ROWS * 3, 0.4)
        seconds = (ROWS + ROWS * 3 * 0.4) / gain * true_off / ROWS * np.exp(0.03 * rng.standard_normal())
        guard.observe(ROWS, emitted, seconds, off_seconds, ROWS / off_seconds, True)
        if not guard.allows_drafts:
            return step
    return None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("understated", [1.0, 0.5, 2.0])
def test_a_gain_is_left_alone_whatever_the_cost_model_says(seed, understated):
    assert play(Guard(SETTINGS), 1000, gain=1.05, seed=seed, understated=understated) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("gain", "limit"), [(0.5, 40), (0.8, 60), (0.93, 150)])
def test_a_loss_is_convicted_in_bounded_time_and_explained(seed, gain, limit):
    guard = Guard(SETTINGS)
    step = play(guard, 400, gain=gain, seed=seed)
    assert step is not None and SETTINGS.memory / 3 <= step + 1 <= limit
    assert "below that of plain decoding" in guard.reason
    assert guard.num_trips == 1


def test_a_pause_ends_after_its_non_speculative_steps_and_doubles_with_the_next_trip():
    guard = Guard(SETTINGS)
    pauses = []
    for seed in range(3):
        assert play(guard, 400, gain=0.6, seed=seed) is not None
        num_steps = 0
        while not guard.allows_drafts:
            guard.observe(ROWS, ROWS, 0.05, 0.05, ROWS / 0.05, False)
            num_steps += 1
        assert guard.reason is None
        pauses.append(num_steps)
    assert pauses == [SETTINGS.memory // 2, SETTINGS.memory, 2 * SETTINGS.memory]


def test_without_a_non_speculative_step_nothing_is_known_and_nobody_convicted():
    guard = Guard(SETTINGS)
    for _ in range(200):
        guard.observe(ROWS, ROWS, 1.0, 0.05, ROWS / 0.05, True)
    assert guard.allows_drafts


def test_prefill_time_is_not_held_against_drafts():
    """A step that is long because of its prefill emits few tokens a second with or without drafts."""
    guard = Guard(SETTINGS)
    for step in range(200):
        speculated = bool(step % 8)
        drafts_seconds = 0.002 * speculated
        guard.observe(ROWS, ROWS * (1.5 if speculated else 1), 1.0 + drafts_seconds, 1.0, ROWS / 0.05, speculated, True)
    assert guard.allows_drafts
