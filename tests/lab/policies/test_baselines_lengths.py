"""Baselines that follow accepted lengths or the draft's own doubts: hf, sglang-ema,
smoothed-length, gammatune, specdec++, adaedl."""

import numpy as np
import pytest
from baseline_cases import K, draft, make_view, observe, planned, run_step
from factories import learn, make_outcome

from lab.policies.adaedl import AdaEdl, acceptance_bound
from lab.policies.gammatune import GammaTune
from lab.policies.hf import HuggingFace
from lab.policies.sglang_ema import SglangEma, Tracker
from lab.policies.smoothed_length import SmoothedLength
from lab.policies.specdecpp import SpecDecPlusPlus

LONG = 32


def lengths_after(policy, accepted_counts, longest=LONG):
    """Planned length before and after each step in which that many tokens (at most all) were
    accepted."""
    view, lengths = make_view(1, row_caps=longest), []
    for accepted in [*accepted_counts, 0]:
        plan = planned(policy, view, max_draft_tokens=longest)
        lengths.append(int(plan.lengths[0]))
        learn(policy, make_outcome(view, plan, accepted=np.minimum(accepted, plan.lengths)))
    return lengths


def test_hf_two_up_one_down():
    assert lengths_after(HuggingFace(), [99, 99, 3, 0, 99]) == [20, 22, 24, 23, 22, 24]
    assert lengths_after(HuggingFace(), [0] * 25)[-1] == 1


def test_hf_comes_back_from_the_longest_draft_at_once():
    lengths = lengths_after(HuggingFace(), [99] * 50 + [0], longest=K)
    assert lengths[0] == lengths[-2] == K
    assert lengths[-1] == K - 1


def test_hf_keeps_a_length_per_request_and_learns_nothing_without_drafts():
    policy, view = HuggingFace(), make_view(3, row_caps=LONG)
    observe(policy, view, [20, 20, 0], [20, 5, 0])
    assert planned(policy, view, max_draft_tokens=LONG).lengths.tolist() == [22, 19, 20]
    policy.end(0)
    assert planned(policy, view, max_draft_tokens=LONG).lengths.tolist() == [20, 19, 20]


def test_hf_and_gammatune_may_stop_at_low_confidence():
    confidence = [[0.9, 0.5, 0.39, 0.9] + [0.9] * 4]
    for rule, least, length in (
        (HuggingFace, 0.4, 3),
        (HuggingFace, 0.95, 1),
        (GammaTune, 0.3, 3),
        (GammaTune, 0.6, 2),
    ):
        assert drafted_lengths(rule(least), confidence) == [length]
    assert planned(HuggingFace(), make_view(1)).stop is None


def test_sglang_moves_to_the_rounded_average_plus_one():
    for average, length in ((0.2, 1), (1.4, 2), (1.6, 3), (2.4, 3), (6.6, 8), (20.0, 8)):
        for start in (1, 3, K):
            tracker = Tracker(start, average, num_steps=14)
            tracker.update(average, K)
            # Downwards it is sluggish: up to a quarter below the threshold it stays one longer.
            assert tracker.length == length or (start > length and tracker.length == length + 1)
    for average, length in ((1.4, 3), (1.25, 2)):
        sluggish = Tracker(3, average, num_steps=14)
        sluggish.update(average, K)
        assert sluggish.length == length


def test_sglang_waits_ten_steps_then_looks_every_fifth():
    lengths = lengths_after(SglangEma(), [99] * 30, longest=K)
    assert lengths[:15] == [3] * 15
    changes = [step for step in range(1, 31) if lengths[step] != lengths[step - 1]]
    assert changes[0] == 15
    assert all(step % 5 == 0 for step in changes)
    assert lengths[-1] > 3


def test_sglang_averages_with_weight_a_fifth_over_drafting_rows_by_batch_size():
    policy, view = SglangEma(), make_view(4)
    observe(policy, view, [3, 3, 0, 0], [3, 1, 0, 0])
    assert policy._tracker(make_view(3)).average == pytest.approx(0.8 * 2 + 0.2 * 2)
    observe(policy, view, [3, 3, 3, 3], [0, 0, 0, 0])
    assert policy._tracker(make_view(4)).average == pytest.approx(0.8 * 2.0)
    assert policy._tracker(make_view(5)).average == 2.0


def test_smoothed_length_reaches_beyond_full_acceptance_and_falls_back_to_the_average():
    # Smoothed 4 -> 4.2 -> 4.76 -> 3.808 -> 3.0464: full acceptance adds 2, else round + 1.
    assert lengths_after(SmoothedLength(), [99, 99, 0, 0]) == [5, 7, 9, 5, 4]
    assert lengths_after(SmoothedLength(), [99] * 20)[-1] == 16
    assert lengths_after(SmoothedLength(), [0] * 40)[-1] == 1


def test_gammatune_expands_at_once_and_shrinks_along_an_average_that_full_acceptance_leaves_alone():
    # The example of the published algorithm: average 3 -> 3 -> 2.7 -> 2.7; then 2.7 -> 1.89 ->
    # 1.323.
    assert lengths_after(GammaTune(), [99, 2, 99, 0, 0]) == [3, 5, 3, 5, 2, 2]
    assert lengths_after(GammaTune(), [99] * 20)[-1] == 10
    assert lengths_after(GammaTune(), [0] * 40)[-1] == 1


@pytest.mark.parametrize("kind", [GammaTune, SmoothedLength])
def test_rules_by_accepted_lengths_cut_stragglers_of_the_draft_model_only(kind):
    policy = kind()
    policy._requests["length"][policy._requests.rows(np.arange(4))] = [1, 1, 8, 8]
    view = make_view(4, found_lengths=[0, 0, 0, 8])
    assert planned(policy, view).lengths.tolist() == [1, 1, 4, 8]


def drafted_lengths(policy, confidence, entropy=0.0, view=None):
    confidence = np.asarray(confidence)
    plan = planned(policy, view or make_view(len(confidence)))
    return draft(plan, confidence, np.broadcast_to(entropy, confidence.shape)).tolist()


def test_specdec_stops_where_a_rejection_is_likelier_than_the_threshold():
    # 1 - 0.9^3 = 0.27, 1 - 0.9^4 = 0.34; 1 - 0.99^8 = 0.08.
    confidence = np.repeat([[0.9], [0.99], [0.1]], K, axis=1)
    assert drafted_lengths(SpecDecPlusPlus(), confidence) == [4, 8, 2]
    assert drafted_lengths(SpecDecPlusPlus(0.7), confidence) == [8, 8, 2]
    assert drafted_lengths(SpecDecPlusPlus(), np.full((1, K), np.nan)) == [8]


def test_specdec_starts_every_step_afresh():
    policy, confidence = SpecDecPlusPlus(), np.full((1, K), 0.9)
    assert [drafted_lengths(policy, confidence) for _ in range(3)] == [[4]] * 3


def test_stop_rules_leave_model_free_drafts_whole():
    doubtful = np.full((2, K), 0.1)
    view = make_view(2, found_lengths=[6, 0])
    assert drafted_lengths(SpecDecPlusPlus(), doubtful, view=view) == [6, 2]
    assert drafted_lengths(AdaEdl(), doubtful, 9.0, view) == [6, 1]


@pytest.mark.parametrize(
    ("factor", "bounds"),
    [(0.1, [0.90, 0.78, 0.68, 0.55, 0.45]), (0.2, [0.86, 0.68, 0.55, 0.37, 0.23])],
)
def test_adaedl_bounds_of_the_worked_example(factor, bounds):
    assert acceptance_bound(np.array([0.1, 0.5, 1.0, 2.0, 3.0]), factor) == pytest.approx(
        bounds, abs=0.006
    )


@pytest.mark.parametrize(("factor", "limit"), [(0.1, 2.5), (0.2, 1.25)])
def test_adaedl_first_stops_above_the_entropy_of_the_worked_example(factor, limit):
    entropy = np.zeros((2, K))
    entropy[0, 3], entropy[1, 3] = limit - 0.01, limit + 0.01
    assert drafted_lengths(AdaEdl(factor), np.ones((2, K)), entropy) == [K, 4]


def test_adaedl_threshold_rises_while_too_little_is_accepted_and_falls_after_full_drafts():
    policy, view = AdaEdl(), make_view(1)
    plan = planned(policy, view)

    def threshold_after(accepted, drafted=K, steps=1):
        for _ in range(steps):
            learn(policy, make_outcome(view, plan, [drafted], [accepted]))
        return float(policy._requests["threshold"][policy._requests.rows(np.array([0]))][0])

    assert threshold_after(1) == pytest.approx(0.501)
    assert threshold_after(0, steps=9) == pytest.approx(0.51)
    # The average takes four full acceptances from 0 to above 0.9, rising before and falling after.
    assert threshold_after(K, steps=3) == pytest.approx(0.513)
    assert threshold_after(K, steps=4) == pytest.approx(0.509)
    # stopped early: no reason to go further
    assert threshold_after(3, drafted=3) == pytest.approx(0.509)


def test_adaedl_learns_from_the_draft_model_alone():
    policy, rng = AdaEdl(), np.random.default_rng(0)
    run_step(policy, make_view(2, found_lengths=[4, 0]), 0.0, rng)
    thresholds = policy._requests["threshold"][policy._requests.rows(np.arange(2))]
    assert thresholds == pytest.approx([0.5, 0.501])
