"""Which lengths the policies choose where it is plain what is right."""

from dataclasses import replace

import factories
import numpy as np
import pytest
from drafter_cases import LOOKUP, estimates_of

from smartspec.control import Controller, CostCurve, Drafted, DrafterView, LatencyModel
from smartspec.core.policy_names import POLICIES, parse_policy, published_policies

K = 4
FREE = LatencyModel(CostCurve.linear(0.04, 1e-6))
COSTLY = LatencyModel(CostCurve.linear(0.001, 0.01))
FREE_BOTH = LatencyModel(CostCurve.linear(0.04, 1e-6), (None, CostCurve.linear(1e-5, 1e-7)))


def make_view(found_lengths, row_caps=K):
    return factories.make_view(
        len(found_lengths),
        found_lengths=found_lengths,
        lag=0,
        context_tokens=10,
        row_caps=row_caps,
    )


def decide(policy, view, of_lookup, of_model, latency):
    if of_model is None:
        view = replace(view, drafters=view.drafters[:1])
    return policy.plan(view, estimates_of(latency, of_lookup, of_model))


def survival(*rates):
    return np.cumprod(np.repeat(np.array(rates, dtype=float)[:, None], K, axis=1), axis=1)


@pytest.mark.parametrize(
    "name", ["", "best", "fixed", "fixed:", "fixed:-1", "fixed:x", "fixed:1.5", "off:1", "fixed:²"]
)
def test_unknown_policies_are_named_with_what_is_allowed(name):
    with pytest.raises(ValueError, match="goodput, off, fixed:K") as error:
        parse_policy(name)
    assert repr(name) in str(error.value)


def test_fixed_longer_than_allowed_is_refused():
    parse_policy("fixed:8", 8)
    with pytest.raises(ValueError, match="more than the 8"):
        parse_policy("fixed:9", 8)


def test_off_drafts_nothing():
    plan = decide(
        parse_policy("off"),
        make_view([4, 4]),
        survival(0.99, 0.99),
        survival(0.99, 0.99),
        FREE_BOTH,
    )
    assert plan.lengths.tolist() == [0, 0]
    assert (plan.drafter < 1).all()


def test_fixed_takes_what_was_found_then_the_model_within_caps():
    policy, view = parse_policy("fixed:3"), make_view([4, 1, 0, 0], row_caps=[4, 4, 4, 2])
    lookup_only = decide(policy, view, survival(0, 0, 0, 0), None, FREE)
    assert lookup_only.lengths.tolist() == [3, 1, 0, 0]
    assert lookup_only.drafter.tolist() == [0, 0, -1, -1]
    both = decide(policy, view, survival(0, 0, 0, 0), survival(0.1, 0.1, 0.1, 0.1), FREE_BOTH)
    assert both.lengths.tolist() == [3, 1, 3, 2]
    assert both.drafter.tolist() == [0, 0, 1, 1]


def test_goodput_speculates_where_tokens_are_free_and_not_where_they_cost():
    policy, view = parse_policy("goodput"), make_view([4, 2, 0])
    assert decide(policy, view, survival(0.5, 0.5, 0.5), None, FREE).lengths.tolist() == [4, 2, 0]
    assert decide(policy, view, survival(0.5, 0.5, 0.5), None, COSTLY).lengths.tolist() == [0, 0, 0]


def test_rows_without_drafts_are_never_marked_for_the_model():
    """They draft with no drafter, whatever the others do."""
    view = make_view([0, 4])
    view = replace(view, row_caps=np.array([0, 4]))
    plan = decide(
        parse_policy("goodput"), view, survival(0.9, 0.9), survival(0.95, 0.95), FREE_BOTH
    )
    assert plan.lengths.tolist() == [0, 4]
    assert plan.drafter.tolist() == [-1, 1]


@pytest.mark.parametrize("name", ["goodput", "off", "fixed:2", "uniform:1,3"])
def test_steps_without_decoding_requests(name):
    nothing = np.empty((0, K))
    assert decide(
        parse_policy(name), make_view(np.empty(0, dtype=int)), nothing, nothing, FREE_BOTH
    ).lengths.shape == (0,)


@pytest.mark.parametrize("name", [*POLICIES, *published_policies(), "fixed:3", "uniform:1,3"])
def test_a_policy_learns_from_steps_in_which_no_row_could_have_a_draft(name):
    """It was not called to plan them, not even the first."""
    controller = Controller(
        parse_policy(name),
        K,
        LatencyModel(CostCurve.linear(0.01, 0.001)),
        drafters=(LOOKUP,),
        strict=True,
    )
    for found in (0, 0, 2, 0):
        view = replace(factories.make_view(3), drafters=(DrafterView(np.full(3, found)),))
        plan = controller.plan(view)
        verified = controller.cut(plan, Drafted(plan.lengths))
        controller.learn(
            plan,
            factories.make_outcome(
                view, plan, verified, verified, extras={"divergence": np.zeros((3, K))}
            ),
        )
    assert all(controller.end(request_id) is None for request_id in range(3))
