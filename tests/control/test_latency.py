import json
from dataclasses import replace

import factories
import numpy as np
import pytest
from drafter_cases import LOOKUP, MODEL, lagging

from smartspec.control import CostCurve, DrafterSpec, LatencyModel, Plan, ProfileSample, StepSeconds

K = 4
TARGET, DRAFT = CostCurve.linear(0.03, 0.002), CostCurve.linear(0.005, 0.001)


def make_view(num_rows, *, context=100, lag=0, **prefill):
    return factories.make_view(
        num_rows, found_lengths=K, lag=lag, context_tokens=context, row_caps=K, **prefill
    )


def observe(model, view, num_draft_tokens, target, draft=0.0, host=0.002, drafter=0):
    lengths = np.full(view.num_rows, num_draft_tokens)
    plan = Plan(lengths, np.full(view.num_rows, drafter))
    seconds = StepSeconds(draft=draft, target=target, host=host)
    model.observe([factories.make_outcome(view, plan, seconds=seconds)])


def slow_drafts_down(model, view, plan):
    """The model sees steps whose draft passes take half as long again as it predicts."""
    seconds = model.predict(view, plan, plan.lengths)
    seconds = StepSeconds(1.5 * seconds.draft, seconds.target, 0.001)
    for _ in range(40):
        model.observe([factories.make_outcome(view, plan, seconds=seconds)])


def off_seconds(model, view):
    return float(model.target_seconds(view, np.zeros(1, dtype=int))[0])


def test_context_is_charged_per_draft_token():
    """A fed token's own key and value are read too."""
    curve = CostCurve(
        (0.0,), (0.001,), 0.03, per_context_token=1e-6, per_row=1e-4, per_attended_token=1e-5
    )
    seconds = LatencyModel(curve).target_seconds(make_view(2, context=500), np.array([0, 1]))
    assert seconds[0] == pytest.approx(0.03 + 2 * 0.001 + 1002 * 1e-6 + 2 * 1e-4 + 1002 * 1e-5)
    assert seconds[1] - seconds[0] == pytest.approx(0.001 + 1e-6 + 501 * 1e-5)


def test_prompt_tokens_get_no_logits():
    curve = CostCurve((0.0,), (0.001,), 0.03, per_scored_token=0.0005)
    seconds = LatencyModel(curve).target_seconds(make_view(2, prefill_tokens=100), np.array([0, 3]))
    assert seconds == pytest.approx(
        [0.03 + 102 * 0.001 + 2 * 0.0005, 0.03 + 105 * 0.001 + 5 * 0.0005]
    )


def test_draft_cost_is_per_pass_with_the_draft_prefill_in_the_first():
    model = LatencyModel(TARGET, (None, DRAFT))
    drafter = np.array([1, 1, 0])
    seconds = model.draft_seconds(make_view(3, lag=10), drafter, K)[1]
    assert seconds == pytest.approx([0.0, 0.027, 0.034, 0.041, 0.048])
    assert model.draft_seconds(make_view(3), np.zeros(3, int), K).tolist() == [[0.0] * (K + 1)] * 2


def test_predicted_draft_time_counts_only_rows_that_take_part():
    model = LatencyModel(TARGET, (None, DRAFT))
    plan = Plan(np.array([3, 1, 4]), np.array([1, 1, 0]))
    predicted = model.predict(make_view(3), plan, np.array([3, 1, 4]))
    assert predicted.draft == pytest.approx(3 * 0.005 + (2 + 1 + 1) * 0.001)
    assert predicted.target == pytest.approx(0.03 + 11 * 0.002)
    assert predicted.off == pytest.approx(0.03 + 3 * 0.002)
    assert LatencyModel(TARGET).predict(make_view(3), plan, plan.lengths).draft == 0.0


def test_one_size_that_is_slower_is_learned_without_moving_the_others():
    """The profile missed that 64 tokens take 30 % longer: the curve gets its bend there, and stays
    monotone."""
    model = LatencyModel(TARGET)
    for _ in range(400):
        for rows, factor in ((4, 1.0), (16, 1.0), (64, 1.3)):
            observe(model, make_view(rows), 0, factor * (0.03 + 0.002 * rows))
    assert off_seconds(model, make_view(64)) == pytest.approx(1.3 * 0.158, rel=0.06)
    assert off_seconds(model, make_view(4)) == pytest.approx(0.038, rel=0.06)
    assert off_seconds(model, make_view(16)) == pytest.approx(0.062, rel=0.06)


def test_prefill_is_corrected_on_its_own():
    model = LatencyModel(TARGET)
    for _ in range(400):
        observe(model, make_view(4), 0, 0.038)
        observe(model, make_view(4, prefill_tokens=12), 0, 1.4 * 0.062)
    assert off_seconds(model, make_view(4)) == pytest.approx(0.038, rel=0.06)
    assert off_seconds(model, make_view(4, prefill_tokens=12)) == pytest.approx(
        1.4 * 0.062, rel=0.06
    )


def test_draft_passes_are_corrected_on_their_own():
    model = LatencyModel(TARGET, (None, DRAFT))
    for _ in range(150):
        observe(model, make_view(2), 2, 0.038, draft=2 * 2 * 0.007, drafter=1)
    assert model.draft_seconds(make_view(2), np.ones(2, int), 2)[1] == pytest.approx(
        [0.0, 0.014, 0.028], rel=0.03
    )
    assert model.target_seconds(make_view(2), np.array([4]))[0] == pytest.approx(0.042, rel=0.1)


def test_looking_up_drafts_is_host_time():
    model = LatencyModel(TARGET)
    for _ in range(100):
        observe(model, make_view(2), 1, 0.038, draft=0.001, host=0.002)
    assert model.host_seconds == pytest.approx(0.003)


def test_fit_and_round_trip_through_json():
    target = [ProfileSample(n, 64 * n, n, 0.03 + 0.002 * n) for n in (1, 2, 4, 8, 16)]
    draft = [ProfileSample(n, 64 * n, n, 0.004 + 0.0001 * n) for n in (1, 2, 4, 8, 16)]
    for model in (LatencyModel.fit(target), LatencyModel.fit(target, [[], draft])):
        again = LatencyModel.from_dict(json.loads(json.dumps(model.to_dict())))
        assert again.to_dict() == model.to_dict()
        assert again.target == model.target
        assert again.drafts == model.drafts
        json.dumps(model.state(), allow_nan=False)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (None, "format"),
        ({"format": 1, "target": TARGET.to_dict()}, "format"),
        ({"format": 3}, "mapping"),
        ({"format": 3, "target": {"knots": [0]}}, "slopes"),
        (
            {"format": 3, "target": TARGET.to_dict(), "drafts": [[1]]},
            "mapping",
        ),
        (
            {
                "format": 3,
                "target": TARGET.to_dict(),
                "drafts": [None, {"constant": 1}],
            },
            "knots",
        ),
    ],
)
def test_corrupt_caches_are_refused(data, named):
    with pytest.raises(ValueError, match=named):
        LatencyModel.from_dict(data)


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({"target": 0.0}, "target"),
        ({"draft": float("nan")}, "draft"),
    ],
)
def test_impossible_times_are_refused_and_teach_nothing(times, named):
    model = LatencyModel(TARGET)
    observe(model, make_view(4), 0, 0.04)
    before = model.state()
    with pytest.raises(ValueError, match=f"{named} seconds are"):
        observe(model, make_view(4), 0, **{"target": 0.04} | times)
    assert model.state() == before


def test_rows_that_may_not_draft_deeper_leave_the_draft_passes():
    model = LatencyModel(TARGET, (None, DRAFT))
    view = replace(make_view(3), row_caps=np.array([2, 1, 0]))
    seconds = model.draft_seconds(view, np.ones(3, int), K)[1]
    assert seconds == pytest.approx([0.0, 0.007, 0.013, 0.013, 0.013])


def test_passes_of_several_drafters_add_up_and_each_is_corrected():
    model = LatencyModel(
        TARGET,
        (DRAFT, CostCurve.linear(0.02, 0.001)),
    )
    plan = Plan(np.array([3, 1, 2]), np.array([0, 0, 1]))
    view = make_view(3)
    of_both = model.draft_seconds(view, plan.drafter, K)
    for number in (0, 1):
        alone = model.draft_seconds(view, np.where(plan.drafter == number, number, -1), K)
        assert of_both[number] == pytest.approx(alone[number]) and not alone[1 - number].any()
    first = 0.005 + 2 * 0.001 + 2 * (0.005 + 0.001)
    second = 2 * (0.02 + 0.001)
    assert model.predict(view, plan, plan.lengths).draft == pytest.approx(first + second)
    slow_drafts_down(model, view, plan)
    alone = Plan(plan.lengths, np.array([-1, -1, 1]))
    assert model.predict(view, alone, plan.lengths).draft == pytest.approx(1.5 * second, rel=0.1)


def test_of_a_draft_made_in_one_pass_another_token_is_another_entry_of_it():
    curve = CostCurve((0.0,), (0.001,), 0.005, per_scored_token=0.0005)
    model = LatencyModel(TARGET, (None, curve))
    model.use_drafters((LOOKUP, replace(MODEL, one_pass_depth=3)))
    view, drafter = make_view(3, lag=10), np.array([1, 1, 0])
    seconds = model.draft_seconds(view, drafter, K)[1]
    # a fourth token would need another pass
    of_pass = 0.005 + 20 * 0.001 + 2 * np.array([1, 2, 3, 3]) * 0.0015
    assert seconds == pytest.approx([0.0, *of_pass])
    plan = Plan(np.array([2, 1, 4]), drafter)
    drafting = 0.005 + 20 * 0.001 + 3 * 0.0015
    assert model.predict(view, plan, plan.lengths).draft == pytest.approx(drafting)
    slow_drafts_down(model, view, plan)
    assert model.predict(view, plan, plan.lengths).draft == pytest.approx(1.5 * drafting, rel=0.1)


@pytest.mark.parametrize("drafts", [(), (CostCurve.linear(0.01, 0.0),), (None, None)])
def test_a_drafter_with_passes_and_no_curve_is_refused_and_the_other_way_round(drafts):
    with pytest.raises(ValueError, match="give LatencyModel a curve for each"):
        LatencyModel(TARGET, drafts).use_drafters((LOOKUP, MODEL))


def test_passes_that_run_in_every_step_are_no_cost_of_drafts():
    model, drafter = (
        LatencyModel(CostCurve.linear(0.02, 0.001), (CostCurve.linear(0.01, 0.0),)),
        np.zeros(3, int),
    )
    model.use_drafters((DrafterSpec("head", has_passes=True, kept_passes=1),))
    view = factories.make_view(3, drafters=(lagging(3),), row_caps=K)
    assert model.draft_seconds(view, drafter, 3)[0] == pytest.approx([0.0, 0.0, 0.01, 0.02])
    assert not model.predict(view, Plan(np.ones(3, int), drafter), np.ones(3, int)).drafts
    assert model.predict(
        view, Plan(np.full(3, 3), drafter), np.zeros(3, int)
    ).draft == pytest.approx(0.02)
