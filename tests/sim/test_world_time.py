"""True step times: what is charged, noise, throttling, and what a start-up profile makes of
them."""

from dataclasses import replace

import factories
import numpy as np
import pytest

from smartspec.control import CostCurve, Plan, StepSeconds
from smartspec.sim.world.hardware import roofline
from smartspec.sim.world.step_time import GroundTruthTime, jittered

K = 4
CURVE = CostCurve(
    (0.0,), (2e-3,), 0.03, per_context_token=1e-6, per_row=1e-4, per_attended_token=1e-7
)
DRAFT = CostCurve.linear(5e-3, 1e-3)
H100 = GroundTruthTime(
    roofline("h100", "llama-3.1-8b"), (roofline("h100", "llama-3.2-1b"),), 1e-4, jitter=0.02
)


def make_view(contexts, *, lag=0, **prefill):
    return factories.make_view(
        len(contexts), lag=lag, context_tokens=contexts, row_caps=K, **prefill
    )


def step(ground_truth, view, drafted, verified=None, drafter=0, seed=0):
    drafted = np.array(drafted)
    plan = Plan(drafted, np.full(view.num_rows, drafter))
    verified = drafted if verified is None else np.array(verified)
    return ground_truth.step_seconds(view, plan, drafted, verified, np.random.default_rng(seed))


def test_a_target_pass_reads_contexts_and_feeds_newest_and_draft_tokens():
    ground_truth = GroundTruthTime(CURVE, (), 1e-3)
    contexts, verified = np.array([100, 300]), np.array([3, 0])
    seconds = step(ground_truth, make_view(contexts), verified, drafter=-1)
    attended = 101 + 102 + 103 + 104 + 301
    expected = 0.03 + 5 * 2e-3 + (400 + 5) * 1e-6 + 2 * 1e-4 + attended * 1e-7
    assert seconds.target == pytest.approx(expected, rel=1e-12)
    assert (seconds.draft, seconds.host) == (0.0, 1e-3)


def test_a_pass_of_a_tree_is_fed_several_nodes_of_a_row():
    ground_truth = GroundTruthTime(CURVE, (CURVE,), 1e-3)
    view, lengths = make_view(np.array([100, 300]), lag=2), np.array([4, 4])
    plan, fed = Plan(lengths, np.zeros(2, dtype=np.int64), width=3), np.array([[1, 3], [1, 0]])
    seconds = ground_truth.step_seconds(view, plan, lengths, lengths, np.random.default_rng(0), fed)
    attended = 101 + 301 + 2 * (100 + 300), 3 * (100 + 1 + 3)
    first = 0.03 + (2 + 4) * 2e-3 + (400 + 2) * 1e-6 + 2 * 1e-4 + attended[0] * 1e-7
    second = 0.03 + 3 * 2e-3 + (100 + 1 + 3) * 1e-6 + 1e-4 + attended[1] * 1e-7
    assert seconds.draft == pytest.approx(first + second, rel=1e-12)
    of_all = ground_truth.draft_seconds(view, np.zeros(2, dtype=np.int64), 2, width=3)[0]
    assert of_all[1] == pytest.approx(first, rel=1e-12) and of_all[2] > of_all[1] + second


def test_prefill_is_charged():
    ground_truth = GroundTruthTime(CURVE)
    prefill = {
        "num_prefills": 1,
        "prefill_tokens": 50,
        "prefill_context_tokens": 250,
        "prefill_attended_tokens": 11275,
    }
    extra = (
        step(ground_truth, make_view([100], **prefill), [0]).target
        - step(ground_truth, make_view([100]), [0]).target
    )
    assert extra == pytest.approx(50 * 2e-3 + 250e-6 + 1e-4 + 11275e-7)
    only_prefill = make_view([], **prefill)
    assert step(ground_truth, only_prefill, np.zeros(0, int)).target == pytest.approx(0.03 + extra)


def test_it_is_the_noise_free_latency_of_its_own_steps():
    """Exact but for what n alone cannot tell: who drafts. 3 rows of equal context differ by the
    draft's triangle."""
    view = make_view([200, 200, 200], lag=7)
    predicted = H100.target_seconds(view, np.array([0, 6]))
    assert predicted.shape == (2,)
    noise_free = GroundTruthTime(H100.target, H100.drafts, H100.host_seconds)
    drafted = step(noise_free, view, [2, 2, 2])
    assert predicted == pytest.approx(
        [step(noise_free, view, [0, 0, 0]).target, drafted.target], rel=1e-5
    )
    assert H100.draft_seconds(view, np.zeros(3, int), K)[0, 2] == pytest.approx(drafted.draft)
    assert H100.host_seconds == drafted.host


def test_draft_passes_charge_rows_that_take_part_and_the_draft_prefill_once():
    ground_truth = GroundTruthTime(CURVE, (DRAFT,))
    view = make_view([100, 100, 100], lag=10)
    passes = [5e-3 + (3 + 30) * 1e-3, 5e-3 + 2e-3, 5e-3 + 1e-3]
    assert step(ground_truth, view, [3, 1, 2]).draft == pytest.approx(sum(passes))
    upper = ground_truth.draft_seconds(view, np.array([0, -1, 0]), 2)[0]
    assert upper == pytest.approx([0.0, 5e-3 + 22e-3, 5e-3 + 22e-3 + 7e-3])
    assert step(ground_truth, view, [3, 1, 2], drafter=-1).draft == 0.0
    assert ground_truth.draft_seconds(view, np.full(3, -1), 2).tolist() == [[0.0, 0.0, 0.0]]
    assert GroundTruthTime(CURVE).draft_seconds(view, np.zeros(3, int), 1).tolist() == [[0.0, 0.0]]


def test_cutting_after_drafting_saves_target_time_only():
    view = make_view([100, 100])
    whole, cut = step(H100, view, [4, 4]), step(H100, view, [4, 4], verified=[4, 0])
    assert cut.draft == whole.draft and cut.target < whole.target


def test_jitter_keeps_the_mean():
    exact, rng = StepSeconds(0.0, 2.0, 1.0), np.random.default_rng(1)
    targets = np.array([jittered(exact, 0.3, rng).target for _ in range(20_000)])
    assert np.log(targets).std() == pytest.approx(0.3, rel=0.03)
    assert abs(targets.mean() - 2.0) < 4 * targets.std() / np.sqrt(len(targets))


def test_throttling_slows_passes_from_its_second_on():
    ground_truth = GroundTruthTime(CURVE, (DRAFT,), 1e-3, throttle=((10.0, 1.3), (20.0, 1.0)))
    view = make_view([100, 200])
    before, during, after = (
        step(ground_truth, replace(view, now=now), [2, 2]) for now in (9.9, 10.0, 20.0)
    )
    assert during.target == pytest.approx(1.3 * before.target) and during.draft == pytest.approx(
        1.3 * before.draft
    )
    assert during.host == before.host and after == before
    slow, late = replace(view, now=15.0), replace(view, now=25.0)
    none, throttled = (
        ground_truth.target_seconds(view, np.array([4])),
        ground_truth.at(slow).target_seconds(view, np.array([4])),
    )
    assert throttled == pytest.approx(1.3 * none)
    assert ground_truth.at(slow).draft_seconds(view, np.zeros(2, int), 2)[0, 2] == pytest.approx(
        during.draft
    )
    assert ground_truth.at(late).target_seconds(view, np.array([4])) == pytest.approx(none)
    assert ground_truth.at(slow).at(slow).factor == 1.3  # not twice


def test_the_controller_is_charged_by_number_of_requests():
    ground_truth = GroundTruthTime(CURVE, (DRAFT,), 1e-3, controller_seconds=((1, 1e-3), (4, 4e-3)))
    one, two, ten = (make_view([100] * size) for size in (1, 2, 10))
    hosts = [step(ground_truth, view, [0] * view.num_rows).host for view in (one, two, ten)]
    assert hosts == pytest.approx([2e-3, 3e-3, 5e-3])
    assert (
        ground_truth.at(two).host_seconds
        == ground_truth.at(two).at(ten).host_seconds
        == pytest.approx(3e-3)
    )


@pytest.mark.parametrize("rows", [1, 4, 16, 64, 128])
def test_an_honest_profile_is_close(rows):
    view = make_view([600] * rows)
    lengths = np.array([0, rows, 4 * rows])
    model = H100.profile()
    assert model.target_seconds(view, lengths) == pytest.approx(
        H100.target_seconds(view, lengths), rel=0.05
    )
    ones = np.ones(rows, dtype=bool)
    assert model.draft_seconds(view, ones, K) == pytest.approx(
        H100.draft_seconds(view, ones, K), rel=0.05
    )


def test_distorted_profiles_are_wrong_as_stated():
    view, lengths = make_view([600] * 16), np.array([0, 16, 64])
    honest = H100.profile().target_seconds(view, lengths)
    for factor in (0.5, 2.0):
        assert H100.profile(distortion=factor).target_seconds(view, lengths) == pytest.approx(
            factor * honest
        )
    view, drafter = make_view([600] * 16), np.zeros(16, dtype=int)
    of_drafts = H100.profile(distortion="drafts:3")
    assert of_drafts.target_seconds(view, lengths) == pytest.approx(honest, rel=0.02)
    expected = 3 * H100.profile().draft_seconds(view, drafter, K)
    assert of_drafts.draft_seconds(view, drafter, K) == pytest.approx(expected, rel=0.02)
    blind = H100.profile(distortion="no-context")
    long_view = make_view([6000] * 16)
    assert blind.target_seconds(long_view, lengths) == pytest.approx(
        blind.target_seconds(view, lengths)
    )
    assert (
        H100.target_seconds(long_view, lengths) > 1.2 * H100.target_seconds(view, lengths)
    ).all()


def test_a_profile_is_a_measurement():
    view, lengths = make_view([600] * 16), np.array([16])
    first, again, other = (
        H100.profile(seed=seed).target_seconds(view, lengths) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert GroundTruthTime(CURVE).profile().drafts == ()


def test_throttling_in_another_order_is_refused():
    with pytest.raises(ValueError, match="give ascending seconds"):
        GroundTruthTime(CURVE, throttle=((2.0, 1.1), (1.0, 1.0)))
