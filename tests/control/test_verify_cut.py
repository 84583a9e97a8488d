"""Drafts are cut for what is worth verifying, and never for what was drawn."""

import factories
import numpy as np
import pytest
from confident import drafted_of, teach
from drafter_cases import MODEL
from hypothesis import given, settings
from hypothesis import strategies as st

from smartspec.control import Controller, CostCurve, Drafted, LatencyModel
from smartspec.control.goodput.worth import ConfidenceStop, lengths_to_verify
from smartspec.control.policy import LEARN_STEPS
from smartspec.core.policy_names import POLICIES, parse_policy, published_policies

K, R = 5, 4
NUM_LEARNED = LEARN_STEPS
NONE = np.zeros(R, dtype=np.int64)
# Of these no draft ends, and none is cut, for what happens in another row's draft: drafts are as
# long as planned, so the confidence of other rows may be used up to their ends.
WITHOUT_COUPLED_DRAFTS = {"adaserve", "adaserve:10"}
NAMES = [*POLICIES, *published_policies(), "adaserve:10", "fixed:3", "uniform:1,3", "hf:0.4"]


def test_a_token_is_kept_where_it_is_worth_more_than_its_price():
    gains = np.array([[0.9, 0.5, 0.4], [0.8, 0.3, 0.1], [0.2, 0.2, 0.2]])
    assert lengths_to_verify(gains, np.full(3, 3), 0.35).tolist() == [3, 1, 0]
    assert lengths_to_verify(gains, np.array([2, 3, 0]), 0.35).tolist() == [2, 1, 0]
    assert lengths_to_verify(gains, NONE[:3], 0.0).tolist() == [0, 0, 0]


def test_where_a_token_always_costs_the_same_no_cut_is_better():
    rng = np.random.default_rng(0)
    for _ in range(100):
        gains, price = np.sort(rng.uniform(size=(1, K)))[:, ::-1], rng.uniform()
        values = np.concatenate([[0.0], gains[0].cumsum()]) - price * np.arange(K + 1)
        assert lengths_to_verify(gains, np.array([K]), price)[0] == values.argmax()


def learned_controller(name, slopes, seed):
    """A controller that has learned from some steps that confidence is to be believed."""
    rng = np.random.default_rng(seed)
    target = CostCurve(
        knots=tuple(float(R + n) for n in range(len(slopes))), slopes=slopes, constant=0.02
    )
    latency = LatencyModel(target, (CostCurve.linear(1e-4, 1e-5),))
    controller = Controller(parse_policy(name), K, latency, drafters=(MODEL,), strict=True)
    for step in range(NUM_LEARNED):
        teach(controller, make_view(step), rng.uniform(0.05, 1.0, (R, K)), rng, target)
    return controller


def make_view(step):
    extras = {"tpot_targets": np.array([np.inf, 0.01, np.inf, 0.02])}
    more = {
        "context_tokens": 100 + step,
        "row_caps": K,
        "now": float(step),
        "extras": extras,
    }
    return factories.make_view(R, lag=0, **more)


def drafted_again(plan, confidence):
    """Drafts of another step of the same plan."""
    if isinstance(plan.stop, ConfidenceStop):
        plan.stop.survival.begin_step()  # a policy does it for each step
    return drafted_of(plan, confidence, 1.0 - confidence)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(
    slopes=st.tuples(*[st.sampled_from([0.0, 2e-4, 2e-3, 1e-2, 2e-2])] * 6),
    seed=st.integers(0, 10_000),
)
def test_whether_a_token_is_kept_does_not_depend_on_what_comes_after_it(name, slopes, seed):
    """All confidence after a position, and how long drafts are that reach it, is drawn again: the
    tokens up to there stay or go as before. Also where that of other rows is, as a rule that stops
    drafts may look at all rows."""
    controller, rng = learned_controller(name, slopes, seed), np.random.default_rng(seed + 1)
    view, confidence = make_view(NUM_LEARNED), rng.uniform(0.05, 1.0, (R, K))
    plan = controller.plan(view)
    drafted = drafted_again(plan, confidence)
    first, lengths = controller.cut(plan, drafted), drafted.lengths
    for position in np.repeat(np.arange(K), 5):
        rows = (
            np.arange(R) == rng.integers(R)
            if name in WITHOUT_COUPLED_DRAFTS
            else np.ones(R, dtype=bool)
        )
        is_after = rows[:, None] & (np.arange(K) > position)
        others = np.where(is_after, rng.choice([0.05, 0.5, 1.0], (R, K)), confidence)
        redrawn = rng.integers(np.minimum(position + 1, plan.lengths), plan.lengths + 1)
        # the rule sees what is redrawn, or it does not
        if isinstance(plan.stop, ConfidenceStop) and rng.integers(2):
            drafted = drafted_again(plan, others)
        else:
            longer = np.where(rows & (lengths > position), redrawn, lengths)
            is_drafted = np.arange(K) < longer[:, None]
            drafted = Drafted(longer, np.where(is_drafted, others, np.nan))
        now = controller.cut(plan, drafted)
        assert np.array_equal(
            np.minimum(now, position + 1)[rows], np.minimum(first, position + 1)[rows]
        )


def test_what_the_stop_rule_has_seen_is_not_estimated_again():
    """The same tokens are kept as where the rule has seen nothing. In later steps of the same plan,
    too."""
    num_cut = 0
    for seed in range(20):
        controller, rng = (
            learned_controller("goodput", (2e-3,) * 6, seed),
            np.random.default_rng(seed),
        )
        for _ in range(3):
            plan = controller.plan(make_view(NUM_LEARNED))
            confidence = rng.uniform(0.05, 1.0, (R, K))
            if plan.stop is None:
                continue
            drafted = drafted_again(plan, confidence)
            keep = controller.cut(plan, drafted)
            assert plan.stop.survival.of(drafted.lengths) is not None
            plan.stop.survival.begin_step()
            assert keep.tolist() == controller.cut(plan, drafted).tolist(), (
                "as if nothing had been seen"
            )
            num_cut += int((drafted.lengths - keep).sum())
    assert num_cut > 20
