"""The controller at its border: bad input, what it keeps and explains, and when it learns."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import factories
import numpy as np
import pytest
from drafter_cases import LOOKUP, free_test

from smartspec.control import Controller, CostCurve, Drafted, LatencyModel, StepSeconds
from smartspec.control.controller import CHECKED_STEPS, NUM_DECISIONS
from smartspec.control.goodput.policy import Goodput, GoodputSettings
from smartspec.control.planning import no_drafts
from smartspec.control.policy import LEARN_STEPS

K = 4
make_outcome = partial(
    factories.make_outcome, seconds=StepSeconds(draft=0.0, target=0.04, host=0.001)
)


def make_controller(policy="goodput", **changes):
    options = {"max_draft_tokens": K, "drafters": (LOOKUP,)} | changes
    return Controller(policy, latency=LatencyModel(CostCurve.linear(0.04, 0.0005)), **options)


def make_view(rows, **more):
    return factories.make_view(rows, found_lengths=K, context_tokens=10 * K, row_caps=K, **more)


def step(controller, view, **changes):
    """Learn from a step that went as planned, unless it is said what was otherwise; return its
    plan."""
    plan = controller.plan(view)
    factories.learn(controller, make_outcome(view, plan, **changes))
    return plan


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": "best"}, "best"),
        ({"policy": "fixed:9"}, "fixed:9"),
        ({"max_draft_tokens": 0}, "max_draft_tokens is 0"),
    ],
)
def test_bad_configuration_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        make_controller(**changes)


@pytest.mark.parametrize(
    ("drafters", "view"),
    [((), factories.make_view(3)), ((LOOKUP,), make_view(0, prefill_tokens=64))],
    ids=["no drafters", "prefill alone"],
)
def test_where_nothing_is_to_be_decided_only_time_is_learned(drafters, view):
    """The policy is not called, and its time would be the host's."""
    controller = make_controller("fixed:3", drafters=drafters)
    controller.policy = SimpleNamespace(
        learn=lambda plan, outcome: None, uses_estimates=True, learn_steps=1
    )
    controller._acceptance = None
    for _ in range(50):
        plan = step(controller, view, seconds=StepSeconds(0.0, 0.2, 0.001))
        assert not plan.lengths.any() and (plan.drafter == -1).all()
        assert not controller.cut(plan, Drafted(plan.lengths)).any()
    assert controller.latency.off_seconds(view) + controller.latency.host_seconds == pytest.approx(
        0.201, rel=0.1
    )


def test_verification_shrinks_to_what_was_drafted_and_never_grows():
    controller, view = make_controller("fixed:3"), make_view(3)
    plan = controller.plan(view)
    assert plan.lengths.tolist() == [3, 3, 3]
    assert controller.cut(plan, Drafted(np.array([4, 1, 0]))).tolist() == [3, 1, 0]
    smaller = replace(plan, lengths=np.array([1, 0, 0]))
    assert controller.cut(smaller, Drafted(np.array([4, 4, 4]))).tolist() == [1, 0, 0]


@pytest.mark.parametrize("verified", ([2, 2, 2], [2, 1, 0]))
def test_predicted_seconds_are_of_what_was_verified_and_from_before_it_was_measured(verified):
    controller, view = make_controller("fixed:2"), make_view(3, prefill_tokens=5)
    changes = {"drafted": np.full(3, 2), "seconds": StepSeconds(0.0, 0.5, 0.0)}
    for _ in range(LEARN_STEPS):
        assert controller.predicted_seconds is None
        step(controller, view, verified=verified, **changes)
    assert controller.predicted_seconds == pytest.approx(0.04 + 0.0005 * (3 + 5 + sum(verified)))


def test_every_policy_learns_and_off_learns_from_free_tests():
    controller, view = make_controller("off"), make_view(4)
    before = controller.acceptance.table()["lookup, match 4-5"]["acceptance"][0]
    free = (free_test(0, np.ones(4, dtype=int)),)
    for _ in range(50):
        assert not step(controller, view, drafted=np.full(4, K), free_tests=free).lengths.any()
    assert controller.acceptance.table()["lookup, match 4-5"]["acceptance"][0] > before + 0.2


def test_with_other_weights_acceptance_is_forgotten_and_time_is_not():
    controller, fresh, view = make_controller("fixed:2"), make_controller("fixed:2"), make_view(4)
    for _ in range(LEARN_STEPS):
        step(controller, view, seconds=StepSeconds(draft=0.0, target=0.5, host=0.0))
    slower = controller.latency.state()
    assert (controller.acceptance.survival(view) != fresh.acceptance.survival(view)).any()
    controller.forget_acceptance()
    assert (controller.acceptance.survival(view) == fresh.acceptance.survival(view)).all()
    assert controller.latency.state() == slower != fresh.latency.state()


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": StepSeconds(draft=0.0, target=float("nan"), host=0.0)},
        {"accepted": np.array([9, 0]), "num_emitted": 2},
        {"drafted": np.full(2, K + 1)},
    ],
)
def test_impossible_feedback_is_counted_and_ignored(changes):
    controller = make_controller("fixed:2")
    before = controller.state()
    step(controller, make_view(2), **changes)
    after = controller.state()
    assert sum(after.pop("ignored_input").values()) == 1
    assert before.pop("ignored_input") == {}
    assert after == before


def test_strict_mode_raises_what_production_mode_counts():
    view, controller = make_view(2), make_controller("fixed:2", strict=True)
    seconds = StepSeconds(draft=0.0, target=float("nan"), host=0.0)
    with pytest.raises(ValueError, match="target seconds are nan"):
        step(controller, view, seconds=seconds)
    with pytest.raises(ValueError, match=r"now is -1\.0, before 0\.0"):
        controller.plan(replace(view, now=-1.0))


def test_a_clock_that_went_backwards_counts_from_then_on():
    view, controller = make_view(2), make_controller("fixed:2")
    controller.plan(view)
    earlier = replace(view, now=-1.0)
    assert controller.plan(earlier).lengths.tolist() == [0, 0]
    assert step(controller, earlier).lengths.tolist() == [2, 2]
    assert controller.num_ignored == {"clock": 1}


def test_state_explains_the_last_decisions_and_is_json():
    controller, view = make_controller(), make_view(2, prefill_tokens=7)
    for _ in range(NUM_DECISIONS + 5):
        plan = controller.plan(view)
        keep = controller.cut(plan, Drafted(plan.lengths))
        factories.learn(controller, make_outcome(view, plan, accepted=keep // 2))
    state = json.loads(json.dumps(controller.state(), allow_nan=False))
    assert len(state["decisions"]) == NUM_DECISIONS
    last = state["decisions"][-1]
    assert (last["num_rows"], last["prefill_tokens"]) == (2, 7)
    assert last["lengths"] == last["verified"] == keep.tolist()
    assert last["accepted"] == (keep // 2).tolist()
    assert last["predicted_goodput"] >= last["predicted_goodput_off"] > 0
    assert last["measured_seconds"] == pytest.approx(0.041)
    assert last["predicted_seconds"] == pytest.approx(0.041, rel=0.05)
    assert state["cost_model"]["median_relative_error"] < 0.3
    assert state["policy"] == "goodput"


def test_predicted_goodput_is_expected_tokens_over_predicted_time():
    controller = make_controller("fixed:2")
    step(controller, make_view(3))
    decision = controller.state()["decisions"][0]
    assert decision["predicted_goodput"] == pytest.approx(
        3 * (1 + 0.6 + 0.6 * 0.6) / (0.04 + 0.0005 * 9)
    )
    assert decision["predicted_goodput_off"] == pytest.approx(3 / (0.04 + 0.0005 * 3))


def test_what_is_read_is_known_from_all_steps_so_far():
    """Learning in groups of steps is not seen from outside."""
    controller, view = make_controller("fixed:2"), make_view(2)
    first = controller.acceptance.survival(view)[0, 0, 0]
    for num_steps in range(1, 2 * LEARN_STEPS):
        step(controller, view, accepted=[0, 0])
        now = controller.acceptance.survival(view)[0, 0, 0]
        assert now < first, f"nothing was learned of step {num_steps}"
        first = now


def test_a_group_of_steps_is_learned_from_without_being_read():
    """Time is predicted for the last step of each group."""
    controller, view, predicted = make_controller("fixed:2"), make_view(2), []
    for _ in range(3 * LEARN_STEPS):
        step(controller, view, accepted=[0, 0])
        predicted.append(controller.predicted_seconds)
    ends = [
        (step + 1) / LEARN_STEPS for step, seconds in enumerate(predicted) if seconds is not None
    ]
    assert ends == [1, 2, 3]
    assert predicted[LEARN_STEPS - 1] != predicted[-1]


def test_a_step_may_be_told_after_the_next_one_was_planned():
    """A host that learns from a step while the next one runs: same records, and the policy hears of
    its own plan."""
    told = {"at once": [], "later": []}
    settings = GoodputSettings(share=0.0)  # it depends on how many steps are over
    for when, records in told.items():
        controller = make_controller(Goodput(settings=settings))
        controller.on_record = records.append
        waiting = None
        for num_rows in (3, 5, 2, 4, 3, 1, 6, 2):  # fewer than are learned from together
            view = make_view(num_rows)
            plan = controller.plan(view)
            # as predicted
            seconds = StepSeconds(0.0, 0.04 + 0.0005 * (num_rows + plan.lengths.sum()), 0.0)
            outcome = make_outcome(view, plan, accepted=plan.lengths // 2, seconds=seconds)
            if when == "at once":
                factories.learn(controller, outcome)
            elif waiting:
                factories.learn(controller, waiting)
            waiting = outcome
        if when == "later":
            factories.learn(controller, waiting)
    later, at_once = (
        [record.to_json() for record in records] for records in (told["later"], told["at once"])
    )
    assert later == at_once and len(later) == 8


def test_forget_drops_the_request():
    controller = make_controller("fixed:2")
    step(controller, make_view(2))
    assert controller.state()["tracked_requests"] == 2
    for request_id in (0, 1, 1, 77):
        controller.end(request_id)
    assert controller.state()["tracked_requests"] == 0


def test_explaining_the_last_step_compares_lengths_and_changes_nothing():
    first, second = make_controller("fixed:2"), make_controller("fixed:2")
    assert first.explain() is None
    view = make_view(3)
    for controller in (first, second):
        step(controller, view, accepted=[2, 1, 0])
    explained = json.loads(json.dumps(first.explain(), allow_nan=False))
    assert explained["verified"] == [2, 2, 2]
    what_if = explained["what_if"]
    assert len(what_if["uniform"]) == K + 1 and what_if["planned"] == what_if["uniform"][2]
    assert what_if["steps_ago"] == 0
    assert what_if["uniform"][0] == pytest.approx(
        3 / first._latency.predict(view, no_drafts(3), np.zeros(3)).total
    )
    assert first.state() == second.state()


def test_without_drafts_the_last_step_that_had_some_is_compared():
    controller = make_controller("fixed:2")
    with_drafts, without = make_view(2), factories.make_view(3, found_lengths=0)
    steps_ago = []
    for view in (without, with_drafts, without, without):
        step(controller, view)
        what_if = controller.explain()["what_if"]
        steps_ago.append(what_if and what_if["steps_ago"])
    assert steps_ago == [None, 0, 1, 2]
    explained = controller.explain()
    assert explained["num_rows"] == 3 and explained["queried"]
    off = 2 / controller._latency.predict(with_drafts, no_drafts(2), np.zeros(2)).total
    assert explained["what_if"]["uniform"][0] == pytest.approx(off)


@pytest.mark.parametrize(("policy", "is_learned"), [("fixed:2", False), ("goodput", True)])
def test_estimates_that_no_policy_uses_are_learned_from_few_steps(policy, is_learned):
    controller, view = make_controller(policy), make_view(2)
    for _ in range(CHECKED_STEPS + LEARN_STEPS):
        step(controller, view, accepted=[0, 0])
    before = controller.acceptance.survival(view)[0, 0, 0]
    for _ in range(LEARN_STEPS):
        plan = replace(controller.plan(view), lengths=np.full(2, 2), drafter=np.array([0, 0]))
        factories.learn(controller, make_outcome(view, plan, accepted=[1, 1]))
    assert (controller.acceptance.survival(view)[0, 0, 0] != before) == is_learned


@pytest.mark.parametrize("strict", [False, True])
def test_input_is_checked_at_first_and_now_and_then_or_always(strict):
    controller, view = make_controller("fixed:2", strict=strict), make_view(2)
    wrong = replace(view, context_tokens=np.array([-1, 5]))
    refused = []
    for step in range(3 * CHECKED_STEPS):
        try:
            controller.plan(wrong)
        except ValueError:
            controller.num_ignored["count"] += 1
        refused.append(controller.num_ignored["count"])
        assert step >= CHECKED_STEPS or refused[-1] == step + 1
    assert refused[-1] == (3 * CHECKED_STEPS if strict else CHECKED_STEPS + 2)


def test_a_refused_step_that_is_told_later_is_not_learned_from():
    controller, view = make_controller("goodput"), make_view(2)
    for _ in range(CHECKED_STEPS - 1):
        controller.plan(view)
    refused = controller.plan(replace(view, context_tokens=np.array([-1, 5])))
    controller.plan(view)  # the first whose input is not checked
    factories.learn(controller, make_outcome(view, refused, accepted=[0, 0]))
    assert controller.num_ignored.total() == 2
