"""Few drafts that exist are chosen by plain arithmetic: the same choice as by arrays."""

from dataclasses import replace

import numpy as np
import pytest

from smartspec.control.acceptance.estimator import AcceptanceEstimator
from smartspec.control.goodput.found_drafts import MAX_SLOTS, are_few
from smartspec.control.goodput.prices import best_choice, found_choice
from smartspec.control.goodput.settings import GoodputSettings
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.policy import Estimates, EstimatesOfView
from smartspec.control.records import BatchView, Drafted, DrafterSpec, DrafterView, Outcome, Plan, StepSeconds

K = 6
DRAFTERS = (DrafterSpec("a", match_lengths=(0, 2, 5)), DrafterSpec("b", match_lengths=(0, 3)))
CURVE = CostCurve(knots=(1.0, 6.0, 16.0), slopes=(0.0, 0.002, 0.0005), constant=0.02)


def random_view(rng, num_rows, num_drafters):
    found = []
    for _ in range(num_drafters):
        lengths = rng.integers(0, K + 3, num_rows) * rng.integers(0, 2, num_rows)
        found.append(DrafterView(lengths, rng.integers(0, 9, num_rows) * (lengths > 0)))
    return BatchView(
        request_ids=rng.permutation(200)[:num_rows],
        context_tokens=rng.integers(10, 900, num_rows),
        max_draft_tokens=rng.integers(0, K + 1, num_rows),
        drafters=tuple(found),
        weights=rng.choice([0.5, 1.0, 4.0], num_rows),
        class_ids=rng.integers(0, 3, num_rows),
        draft_token_budget=int(rng.integers(1, 30)),
    )


def taught(rng, drafters):
    """An estimator that has seen some steps, in which acceptance differed by row."""
    acceptance = AcceptanceEstimator(K, drafters)
    for _ in range(20):
        view = random_view(rng, 5, len(drafters))
        drafter = rng.integers(0, len(drafters), 5)
        lengths = np.minimum(view.draft_lengths[drafter, np.arange(5)], K)
        accepted = np.minimum(rng.geometric(0.2 + 0.15 * (view.request_ids % 5)) - 1, lengths)
        plan = Plan(lengths, np.where(lengths > 0, drafter, -1))
        acceptance.observe([Outcome.of(view, plan, Drafted(lengths), lengths, accepted, StepSeconds(0.0, 0.01, 0.0))])
    return acceptance


@pytest.mark.parametrize("num_drafters", [1, 2])
def test_the_choice_is_that_of_the_arrays(num_drafters):
    rng, drafters = np.random.default_rng(num_drafters), DRAFTERS[:num_drafters]
    acceptance, num_drafted = taught(rng, drafters), 0
    for _ in range(200):
        view = random_view(rng, int(rng.integers(1, 20)), num_drafters)
        if rng.random() < 0.3:
            view = replace(view, num_prefills=1, prefill_tokens=50)
        estimates = EstimatesOfView(drafters, view, LatencyModel(CURVE), acceptance)
        by_arrays = Estimates(drafters, acceptance.survival(view), LatencyModel(CURVE), acceptance)
        few, all_rows = (best_choice(view, each, GoodputSettings()) for each in (estimates, by_arrays))
        assert few.is_found and not all_rows.is_found
        assert few.plan.lengths.tolist() == all_rows.plan.lengths.tolist()
        assert few.draft_plan.drafter.tolist() == all_rows.draft_plan.drafter.tolist()
        for name in ("goodput", "seconds", "off_goodput", "off_seconds", "gain"):
            assert getattr(few.plan, name) == pytest.approx(getattr(all_rows.plan, name), rel=1e-12, abs=1e-12)
        assert (few.prices.time, few.prices.off) == pytest.approx((all_rows.prices.time, all_rows.prices.off))
        num_drafted += few.plan.num_draft_tokens
    assert num_drafted > 100


def test_other_steps_are_left_to_the_arrays():
    rng = np.random.default_rng(0)
    acceptance, view = taught(rng, DRAFTERS), random_view(rng, 4, 2)

    def is_chosen(view, drafters=DRAFTERS):
        return are_few(view, EstimatesOfView(drafters, view, LatencyModel(CURVE), acceptance))

    assert is_chosen(view)
    tree = replace(view.drafters[0], confidence=np.full((4, K), 0.5))
    assert not is_chosen(replace(view, drafters=(tree, view.drafters[1])))
    assert not is_chosen(random_view(rng, MAX_SLOTS // K + 1, 2))


def test_beside_a_model_found_drafts_are_chosen_alone_or_with_it():
    """Alone, they are what is chosen where the model cannot draft."""
    rng, drafters = np.random.default_rng(3), (*DRAFTERS, DrafterSpec("model", has_passes=True))
    acceptance, latency = taught(rng, drafters), LatencyModel(CURVE, (None, None, CostCurve.linear(0.001, 0.0001)))
    for _ in range(50):
        view = random_view(rng, int(rng.integers(1, 8)), 2)
        none, some = (DrafterView(np.full(view.num_rows, length), lag=0 * view.context_tokens) for length in (0, K))
        with_model, without = (replace(view, drafters=(*view.drafters, model)) for model in (some, none))
        of_both, of_found = (EstimatesOfView(drafters, each, latency, acceptance) for each in (with_model, without))
        alone = found_choice(with_model, of_both)
        wanted = best_choice(without, of_found, GoodputSettings())
        assert alone.is_found and wanted.is_found and alone.gain_of_passes is None
        assert alone.plan.lengths.tolist() == wanted.plan.lengths.tolist()
        assert alone.draft_plan.drafter.tolist() == wanted.draft_plan.drafter.tolist()
        both = best_choice(with_model, of_both, GoodputSettings())
        assert not both.is_found and both.gain_of_passes <= both.plan.gain
