"""Drafts are cut for what is worth verifying. That they are never cut for what was drawn:
test_joint_distribution.py."""

import factories
import numpy as np
from confident import drafted_of, teach
from drafter_cases import MODEL

from smartspec.control import Controller, CostCurve, LatencyModel
from smartspec.control.goodput.worth import lengths_to_verify
from smartspec.control.policy import LEARN_STEPS

K, R = 5, 4


def test_a_token_is_kept_where_it_is_worth_more_than_its_price():
    gains = np.array([[0.9, 0.5, 0.4], [0.8, 0.3, 0.1], [0.2, 0.2, 0.2]])
    assert lengths_to_verify(gains, np.full(3, 3), 0.35).tolist() == [3, 1, 0]
    assert lengths_to_verify(gains, np.array([2, 3, 0]), 0.35).tolist() == [2, 1, 0]
    assert lengths_to_verify(gains, np.zeros(3, dtype=int), 0.0).tolist() == [0, 0, 0]


def test_where_a_token_always_costs_the_same_no_cut_is_better():
    rng = np.random.default_rng(0)
    for _ in range(100):
        gains, price = np.sort(rng.uniform(size=(1, K)))[:, ::-1], rng.uniform()
        values = np.concatenate([[0.0], gains[0].cumsum()]) - price * np.arange(K + 1)
        assert lengths_to_verify(gains, np.array([K]), price)[0] == values.argmax()


def make_view(step):
    return factories.make_view(R, lag=0, context_tokens=100 + step, row_caps=K, now=float(step))


def learned_controller(rng):
    """A controller that has learned from some steps that confidence is to be believed."""
    target = CostCurve(knots=tuple(map(float, range(R, R + 6))), slopes=(2e-3,) * 6, constant=0.02)
    latency = LatencyModel(target, (CostCurve.linear(1e-4, 1e-5),))
    controller = Controller("goodput", K, latency, drafters=(MODEL,), strict=True)
    for step in range(LEARN_STEPS):
        teach(controller, make_view(step), rng.uniform(0.05, 1.0, (R, K)), rng, target)
    return controller


def test_what_the_stop_rule_has_seen_is_not_estimated_again():
    """The same tokens are kept as where the rule has seen nothing. In later steps of the same plan,
    too."""
    num_cut = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        controller = learned_controller(rng)
        for _ in range(3):
            plan = controller.plan(make_view(LEARN_STEPS))
            confidence = rng.uniform(0.05, 1.0, (R, K))
            if plan.stop is None:
                continue
            plan.stop.survival.begin_step()  # a policy does it for each step
            drafted = drafted_of(plan, confidence, 1.0 - confidence)
            keep = controller.cut(plan, drafted)
            assert plan.stop.survival.of(drafted.lengths) is not None
            plan.stop.survival.begin_step()
            assert keep.tolist() == controller.cut(plan, drafted).tolist(), (
                "as if nothing had been seen"
            )
            num_cut += int((drafted.lengths - keep).sum())
    assert num_cut > 20
