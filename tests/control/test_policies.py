"""Which lengths the policies choose where it is plain what is right."""

from dataclasses import replace

import factories
import numpy as np
import pytest
from drafter_cases import LOOKUP, estimates_of

from smartspec.control import Controller, CostCurve, DrafterView, LatencyModel
from smartspec.core.policy_names import POLICIES, parse_policy, published_policies

K = 4
TARGET, DRAFT = CostCurve.linear(0.01, 0.001), CostCurve.linear(1e-5, 1e-7)


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


def test_fixed_takes_what_was_found_then_the_model_within_caps():
    policy, survival = parse_policy("fixed:3"), np.zeros((4, K))
    view = factories.make_view(4, found_lengths=[4, 1, 0, 0], lag=0, row_caps=[4, 4, 4, 2])
    without_model = replace(view, drafters=view.drafters[:1])
    lookup_only = policy.plan(without_model, estimates_of(LatencyModel(TARGET), survival))
    assert lookup_only.lengths.tolist() == [3, 1, 0, 0]
    assert lookup_only.drafter.tolist() == [0, 0, -1, -1]
    latency = LatencyModel(TARGET, (None, DRAFT))
    both = policy.plan(view, estimates_of(latency, survival, survival + 1e-3))
    assert both.lengths.tolist() == [3, 1, 3, 2]
    assert both.drafter.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("name", [*POLICIES, *published_policies(), "fixed:3", "uniform:1,3"])
def test_a_policy_learns_from_steps_in_which_no_row_could_have_a_draft(name):
    """It was not called to plan them, not even the first."""
    latency = LatencyModel(TARGET)
    controller = Controller(parse_policy(name), K, latency, drafters=(LOOKUP,), strict=True)

    def told(plan, verified):
        return {"extras": {"divergence": np.zeros((3, K))}}

    for found in (0, 0, 2, 0):
        view = factories.make_view(3, drafters=(DrafterView(np.full(3, found)),))
        factories.play_step(controller, view, np.full(3, found), told)
    assert all(controller.end(request_id) is None for request_id in range(3))
