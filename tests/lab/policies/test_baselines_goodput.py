"""Baselines that predict goodput: the table by batch size and the two forms of SmartSpec."""

import numpy as np
import pytest
from baseline_cases import K, make_estimates, make_latency, make_view, observe, planned, run_step

from lab.policies.batch_table import BatchTable
from lab.policies.linear_latency import LinearLatency
from lab.policies.smartspec import (
    SmartSpecPaper,
    SmartSpecRequest,
    batch_goodput,
    proportional_split,
)
from smartspec.control import CostCurve, LatencyModel
from smartspec.sim.length_table import best_length


@pytest.mark.parametrize(
    ("milliseconds_per_position", "length", "milliseconds_per_token"),
    [(0.1, 9, 8.60), (0.5, 6, 9.40), (2, 3, 11.54), (5, 1, 13.95)],
)
def test_table_entries_of_the_worked_example(
    milliseconds_per_position, length, milliseconds_per_token
):
    lengths = np.arange(21)
    emitted = 1 + 0.9 * lengths**0.548 * (lengths > 0)
    milliseconds = 20 + (milliseconds_per_position + 1.5) * lengths
    best = best_length(emitted, milliseconds)
    assert best == length
    assert (milliseconds / emitted)[best] == pytest.approx(milliseconds_per_token, abs=0.01)


def table_lengths(policy, latency):
    sizes = [1, 2, 3, 4, 8, 32, 100, 128, 256, 1000]
    return [
        int(planned(policy, make_view(n), acceptance=0.5, latency=latency).lengths[0])
        for n in sizes
    ]


def test_table_shortens_drafts_as_the_batch_grows_and_rounds_sizes_up():
    lengths = table_lengths(BatchTable(), make_latency(per_token=3e-4))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 5 > lengths[5] > lengths[-1] == 0
    assert lengths[2] == lengths[3] and lengths[6] == lengths[7]


def test_table_is_made_once_and_knows_only_its_own_acceptance():
    policy = BatchTable(0.9)
    before = table_lengths(policy, make_latency(per_token=3e-4))
    assert table_lengths(policy, make_latency(per_token=0.1)) == before
    assert sum(table_lengths(BatchTable(0.3), make_latency(per_token=3e-4))) < sum(before)


def worked_goodput(num_rows, acceptance):
    """The sheet's example: 8B target with an EAGLE draft on H100, 512 tokens of context each,
    seconds."""

    def at(target_scale):
        latency = LinearLatency(
            constant=target_scale * (6.939e-3 - 4.331e-5 * num_rows),
            per_context_token=target_scale * 4.859e-8,
            per_fed_token=target_scale * 1.844e-5,
            draft_constant=4.471e-4 + 5.528e-6 * num_rows + 2.897e-9 * 512 * num_rows,
            draft_per_pass=4.522e-4,
        )
        view, rows = make_view(num_rows), np.ones(num_rows, dtype=bool)
        return batch_goodput(latency, acceptance, view, rows, num_rows, np.arange(K))

    # 5 % of the target's time is lost to overhead wherever there are drafts.
    return np.append(at(1.0)[:1], at(1.05)[1:])


@pytest.mark.parametrize(
    ("num_rows", "acceptance", "expected"),
    [
        (8, 0.7, [1153.0, 1619.8, 1945.9, 2108.6, 2171.3, 2173.7, 2140.6, 2087.4]),
        (32, 0.5, [4611.8, 5315.4, 5543.5, 5369.7]),
    ],
)
def test_goodput_of_the_worked_example(num_rows, acceptance, expected):
    goodput = worked_goodput(num_rows, acceptance)
    assert goodput[: len(expected)] == pytest.approx(expected, rel=2e-3)
    assert goodput.argmax() == np.argmax(expected)


def test_goodput_of_the_worked_example_at_batch_one():
    goodput = worked_goodput(1, 0.7)
    assert goodput[0] == pytest.approx(144.1, abs=0.1)
    assert goodput.argmax() == 5 and goodput[5] == pytest.approx(291.3, abs=0.3)


class LinearGroundTruth:
    """Times that are exactly linear."""

    host_seconds = 0.002

    def target_seconds(self, view, num_draft_tokens):
        return (
            0.01
            + 3e-8 * view.context_tokens.sum()
            + 2e-4 * (view.ordinary_tokens + num_draft_tokens)
        )

    def draft_seconds(self, view, drafter, max_depth, width=1):
        use_model = drafter == 1
        one_pass = 0.001 + 1e-6 * use_model.sum() + 5e-9 * view.context_tokens[use_model].sum()
        return np.arange(max_depth + 1) * [[0.0], [one_pass]]


def test_linear_fit_recovers_a_linear_profile():
    fitted = LinearLatency.fit(make_estimates(0, latency=LinearGroundTruth()))
    assert fitted.host == 0.002
    assert [fitted.constant, fitted.per_context_token, fitted.per_fed_token] == pytest.approx(
        [0.01, 3e-8, 2e-4]
    )
    assert [fitted.draft_per_pass, fitted.draft_per_row] == pytest.approx([0.001, 1e-6], rel=1e-6)
    assert fitted.draft_per_context_token == pytest.approx(5e-9)
    assert fitted.draft_seconds(100, 0, np.array([3])).tolist() == [0.0]


def test_linear_fit_straightens_a_kink():
    """Flat to 64 tokens, then steep: a line cannot follow, and is not allowed a negative slope or
    constant."""
    kink = CostCurve(knots=(0.0, 64.0), slopes=(0.0, 1e-3), constant=0.02)
    fitted = LinearLatency.fit(make_estimates(0, latency=LatencyModel(kink), has_model=False))
    assert fitted.constant >= 0 and fitted.per_fed_token > 0
    errors = fitted.target_seconds(512, np.array([1, 500])) / kink.seconds(np.array([1, 500])) - 1
    assert abs(errors).max() > 0.05


def test_paper_looks_beyond_the_first_drop():
    """A fixed cost of drafting makes length 1 worse than 0, and 4 better than both."""
    policy = SmartSpecPaper()
    policy._latency = LinearLatency(0.02, 0.0, 0.0, draft_constant=0.02, draft_per_pass=1e-4)
    view = make_view(4)
    goodput = batch_goodput(policy._latency, 0.7, view, np.ones(4, dtype=bool), 4, np.arange(K + 1))
    assert goodput[1] < goodput[0] < goodput[4]
    assert planned(policy, view).lengths.tolist() == [K] * 4


def test_paper_shortens_with_batch_and_lengthens_with_acceptance():
    latency = make_latency(per_token=5e-4)

    def length(num_rows, acceptance):
        policy = SmartSpecPaper()
        policy._accepted = acceptance
        return int(planned(policy, make_view(num_rows), latency=latency).lengths[0])

    by_batch = [length(n, 0.7) for n in (1, 8, 32, 128, 512)]
    assert by_batch == sorted(by_batch, reverse=True)
    assert by_batch[0] > by_batch[-1] == 0
    by_acceptance = [length(8, a) for a in (0.1, 0.5, 0.7, 0.9)]
    assert by_acceptance == sorted(by_acceptance)
    assert by_acceptance[0] < by_acceptance[-1]


def test_paper_wants_ten_percent():
    # 1 % either side of a predicted gain of 10 %
    for per_pass, expected in ((0.0132, True), (0.0147, False)):
        policy = SmartSpecPaper()
        policy._latency = LinearLatency(0.025, 0.0, 0.0, draft_per_pass=per_pass)
        plan = planned(policy, make_view(1, row_caps=1), max_draft_tokens=1)
        assert bool(plan.lengths[0]) == expected
        assert (1.7 * 0.025 / (0.025 + per_pass) > 1.1) == expected


def test_paper_keeps_its_choice_for_twenty_steps():
    policy = SmartSpecPaper()
    costly = make_latency(per_token=5e-3)
    lengths = [
        int(planned(policy, make_view(num_rows), latency=costly).lengths[0])
        for num_rows in [1] + [256] * 40
    ]
    assert lengths[0] > 0
    assert lengths == lengths[:1] * 20 + [0] * 21


def test_paper_fits_once_and_does_not_see_corrections():
    policy, view, corrected = SmartSpecPaper(1), make_view(4), make_latency(per_token=0.1)
    first = planned(policy, view).lengths
    assert planned(policy, view, latency=corrected).lengths.tolist() == first.tolist()
    assert (planned(SmartSpecPaper(1), view, latency=corrected).lengths < first).all()


def test_paper_estimates_acceptance_without_bias():
    """Accepted over drafted tokens would be 0.54 for 0.8 at five draft tokens."""
    rng, policy, view = np.random.default_rng(1), SmartSpecPaper(), make_view(64)
    assert policy.acceptance == 0.7
    estimates, fractions = [], []
    for _ in range(300):
        accepted = np.minimum(rng.geometric(0.2, 64) - 1, 5)
        fractions.append(accepted.mean() / 5)
        observe(policy, view, np.full(64, 5), accepted)
        estimates.append(policy.acceptance)
    assert np.mean(fractions) == pytest.approx(0.54, abs=0.01)
    assert np.mean(estimates[30:]) == pytest.approx(0.8, abs=0.01)


def test_paper_probes_every_two_hundredth_step_while_off():
    policy, rng = SmartSpecPaper(), np.random.default_rng(0)
    policy._accepted = 0.0
    drafted = [run_step(policy, make_view(4), 0.9, rng)[0].lengths.any() for _ in range(230)]
    assert drafted.index(True) == 199
    assert all(drafted[200:])  # the probe showed that drafts are accepted


def test_paper_counts_only_matched_rows_of_prompt_lookup():
    """With drafts of 2 rows in 64 the budget that is paid is 2 tokens a position, not 64."""
    policy = SmartSpecPaper()
    policy._accepted = 0.95
    goodput = batch_goodput(
        LinearLatency(0.02, 0, 2e-3), 0.95, make_view(64), np.zeros(64, bool), 2, np.arange(3)
    )
    assert goodput[1] == pytest.approx((2 * 1.95 + 62) / (0.02 + 2e-3 * 66))
    view = make_view(64, found_lengths=[K] * 2 + [0] * 62, has_model=False)
    plan = planned(policy, view, latency=make_latency(2e-3), has_model=False)
    assert not plan.lengths[2:].any()


def test_split_is_proportional_to_acceptance():
    assert proportional_split(4, np.array([0.9, 0.3, 0.55])).tolist() == [6, 2, 4]


def test_request_level_gives_more_to_requests_that_accept_more():
    policy, rng = SmartSpecRequest(1), np.random.default_rng(0)
    acceptance = np.array([0.9, 0.9, 0.4, 0.4])
    assert policy.request_acceptance(np.arange(4)).tolist() == [0.5] * 4
    latency = make_latency(per_token=2e-3)
    for _ in range(200):
        plan, _ = run_step(policy, make_view(4), acceptance, rng, latency=latency)
    estimated = policy.request_acceptance(np.arange(4))
    assert estimated == pytest.approx(acceptance, abs=0.1)
    assert plan.lengths[:2].min() > plan.lengths[2:].max() > 0


def test_request_level_forgets_what_is_older_than_a_hundred_steps():
    policy, view = SmartSpecRequest(), make_view(1)
    for accepted in [4] * 150 + [0] * 50:
        observe(policy, view, [4], [accepted])
    expected = (50 * 4 + 0.5) / (50 * 4 + 50 * 1 + 1)
    assert policy.request_acceptance(np.array([0])).tolist() == [expected]
    assert policy.acceptance == expected


def test_request_level_tries_starved_requests_again_every_two_hundredth_step():
    policy, rng = SmartSpecRequest(1), np.random.default_rng(0)
    for _ in range(20):
        observe(policy, make_view(4), [8, 8, 8, 8], [8, 8, 8, 0])
    latency = make_latency(per_token=2e-3)
    plans = [run_step(policy, make_view(4), 0.9, rng, latency=latency)[0] for _ in range(201)]
    assert not any(plan.lengths[3] for plan in plans[:199])
    assert plans[199].lengths.tolist() == [K] * 4
    assert plans[200].lengths[3] > 0
