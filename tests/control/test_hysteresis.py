"""Where changing the length of a whole step costs time, it is changed only where that pays."""

import factories
import numpy as np
import pytest
from drafter_cases import LOOKUP, found

from smartspec.control import Controller, CostCurve, Drafted, LatencyModel, StepSeconds
from smartspec.control.goodput.policy import Goodput
from smartspec.control.goodput.settings import GoodputSettings, HysteresisSettings
from smartspec.control.goodput.uniform import Hysteresis

TARGET = CostCurve.linear(0.02, 0.001)


def play(change_seconds, hysteresis, *, lasting=8, num_steps=1600) -> tuple[float, int]:
    """Tokens per second of the second half, and changes of the length in it: 2 and 16 requests take turns."""
    rng = np.random.default_rng(0)
    policy = Goodput((1, 4), settings=GoodputSettings(hysteresis=hysteresis))
    controller = Controller(policy, 4, LatencyModel(TARGET), drafters=(LOOKUP,), strict=True)
    # Or lengths would change only where something was learned.
    policy._held.choice = policy._held.rows = lambda *arguments, **options: None
    tokens = seconds = changes = last = 0.0
    for step in range(num_steps):
        rows = 2 if step // lasting % 2 else 16
        view = factories.make_view(rows, drafters=(found([4] * rows),), now=float(step), max_draft_tokens=4)
        plan = controller.plan(view)
        keep = controller.cut(plan, Drafted(plan.lengths))
        accepted = np.minimum(np.cumprod(rng.random((rows, 4)) < 0.6, axis=1).sum(axis=1), keep)
        is_change, last = int(keep.max()) != last, int(keep.max())
        took = float(TARGET.seconds(rows + int(keep.sum()))) + change_seconds * is_change
        measured = StepSeconds(0.0, took, 0.0)
        outcome = factories.make_outcome(view, plan, keep, accepted, drafted=plan.lengths, seconds=measured)
        factories.learn(controller, outcome)
        if step >= num_steps // 2:
            tokens, seconds, changes = tokens + rows + accepted.sum(), seconds + took, changes + is_change
    return tokens / seconds, int(changes)


NEVER_LEARNS = HysteresisSettings(rate=0.0)


def test_changes_that_cost_more_than_they_gain_are_left_out():
    without, many = play(0.1, NEVER_LEARNS)
    goodput, few = play(0.1, HysteresisSettings())
    assert many > 80 and few < many / 3
    assert goodput > 1.2 * without


def test_changes_that_cost_nothing_are_made():
    without, many = play(0.0, NEVER_LEARNS)
    goodput, as_many = play(0.0, HysteresisSettings())
    assert as_many > 0.9 * many
    assert goodput == pytest.approx(without, rel=0.01)


def test_the_price_is_spread_over_the_steps_a_length_lasts():
    hysteresis = Hysteresis(HysteresisSettings(rate=0.5, first_lasting=4.0), (1, 3))
    assert not hysteresis.charges(np.array([0, 1, 3])).any()
    for _ in range(8):
        hysteresis.observe(1, 0.5)
    assert not hysteresis.charges(np.array([0, 1, 3])).any(), "there was no change yet"
    hysteresis.observe(3, 0.06)
    assert hysteresis.charges(np.array([0, 1, 3])) == pytest.approx([0.005, 0.005, 0.0])
    hysteresis.observe(1, None)
    assert hysteresis.charges(np.array([0, 1, 3])) == pytest.approx([0.03 / 3.5, 0.0, 0.03 / 3.5])
