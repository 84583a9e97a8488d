import numpy as np
import pytest
from baseline_cases import K, make_view, observe, planned

from lab.policies.dsde import (
    WINDOW,
    Dsde,
    instability,
    request_bounds,
    rule_length,
)

LONG = 20


@pytest.mark.parametrize(
    ("divergence", "ratio", "length"),
    [(0.05, 1, 10), (0.2, 1, 7), (0.2, 0.3, 9), (0.5, 0.3, 6), (0.5, 1, 2), (0, 1, 10)],
)
def test_lengths_of_the_worked_example(divergence, ratio, length):
    lengths = rule_length(
        np.array([divergence]), np.array([float(ratio)]), np.array([2]), np.array([10])
    )
    assert lengths.tolist() == [length]


def test_instability_compares_the_newest_third_with_everything():
    rng = np.random.default_rng(0)
    values = rng.exponential(0.3, (1, 9))
    weights = 0.9 ** np.arange(9)

    def variance(count):
        mean = np.average(values[0, :count], weights=weights[:count])
        return np.average((values[0, :count] - mean) ** 2, weights=weights[:count])

    window = np.concatenate([values, np.full((1, 91), np.nan)], axis=1)
    assert instability(window, np.array([9])) == pytest.approx(variance(3) / variance(9))


def test_instability_of_few_or_equal_values():
    window = np.full((3, WINDOW), 0.4)
    assert instability(window, np.array([1, 50, 100])).tolist() == [0.0, 20.0, 20.0]
    assert instability(np.full((1, WINDOW), np.nan), np.array([0])).tolist() == [0.0]


def test_bounds_of_a_request():
    windows = np.array([[0.1] * 50 + [0.3] * 50] * 3)  # mean 0.2, largest 0.3
    shortest, longest = request_bounds(np.array([12, 2, 19]), windows, 6, 20)
    assert longest.tolist() == [16, 6, 20]  # 12 * 4 / 3; clipped; clipped
    assert shortest.tolist() == [6, 6, 6]
    assert request_bounds(np.array([12]), windows[:1], 1, 20)[0].tolist() == [2]


def diverge(policy, view, verified, accepted, divergence):
    is_verified = np.arange(LONG) < np.asarray(verified)[:, None]
    divergence = np.where(is_verified, divergence, np.nan)
    observe(policy, view, verified, accepted, extras={"divergence": divergence})


def lengths_of(policy, view):
    return planned(policy, view, max_draft_tokens=LONG).lengths


def test_warm_up_starts_at_five_doubles_and_returns_to_the_minimum():
    policy, view = Dsde(), make_view(1, row_caps=LONG)
    for length in (5, 10, 20, 20):
        assert lengths_of(policy, view).tolist() == [length]
        diverge(policy, view, [length], [length], 0.1)
    stuck = Dsde()
    diverge(stuck, view, lengths_of(stuck, view), [0], 0.1)
    assert lengths_of(stuck, view).tolist() == [6]


@pytest.fixture
def warm():
    """A policy and a view of two easy and two hard requests, after enough steps that every row has
    a full window of divergences around its mean."""
    policy, rng, view = Dsde(), np.random.default_rng(0), make_view(4, row_caps=LONG)
    means = np.array([0.02, 0.02, 1.5, 1.5])
    for _ in range(40):
        verified = lengths_of(policy, view)
        accepted = np.rint(verified * np.exp(-2 * means)).astype(int)
        diverge(policy, view, verified, accepted, means[:, None] * rng.uniform(0.5, 1.5, (4, LONG)))
    return policy, view


def test_easy_requests_get_longer_drafts_than_hard_ones(warm):
    policy, view = warm
    lengths = policy._requests["length"][policy._requests.rows(view.request_ids)]
    assert lengths[:2].min() > lengths[2:].max() == 6


def test_long_drafts_are_cut_at_the_mean_of_warm_rows_of_the_draft_model(warm):
    policy, view = warm
    table = policy._requests
    table["length"][table.rows(view.request_ids)] = [18, 7, 6, 6]
    more = make_view(5, row_caps=LONG)  # the newcomer is not warm: neither counted nor cut
    assert lengths_of(policy, more).tolist() == [10, 7, 6, 6, 5]
    view = make_view(4, row_caps=LONG, found_lengths=[20, 0, 0, 0])
    assert lengths_of(policy, view).tolist() == [18, 7, 6, 6]


def test_the_published_range_is_scaled_to_the_longest_draft():
    for longest, bounds in ((20, (6, 20)), (40, (6, 20)), (K, (2, 8)), (1, (1, 1))):
        assert Dsde()._length_bounds(longest) == bounds
    assert Dsde(6)._length_bounds(K) == (6, 8)
    assert Dsde(30)._length_bounds(K) == (8, 8)


def test_newest_divergences_come_first_and_old_ones_leave():
    policy, view = Dsde(), make_view(2, row_caps=LONG)
    diverge(policy, view, [3, 1], [0, 0], np.arange(LONG) / 10)
    diverge(policy, view, [2, 0], [0, 0], 1 + np.arange(LONG) / 10)
    rows = policy._requests.rows(view.request_ids)
    assert policy._requests["num_values"][rows].tolist() == [5, 1]
    assert policy._requests["window"][rows[0], :5].tolist() == [1.1, 1.0, 0.2, 0.1, 0.0]
    assert policy._requests["window"][rows[1], 0] == 0.0
    assert np.isnan(policy._requests["window"][rows[1], 1])


def test_without_the_signal_it_says_so():
    policy, view = Dsde(), make_view(1)
    observe(policy, view, [0], [0])
    with pytest.raises(ValueError, match=r"'dsde' needs divergence in Outcome\.extras"):
        observe(policy, view, [3], [1])


def test_rows_whose_divergence_is_unknown_are_left_alone():
    policy, view = Dsde(), make_view(2, row_caps=LONG)
    divergence = np.full((2, LONG), np.nan)
    divergence[0, :5] = 0.1
    observe(policy, view, [5, 5], [5, 5], extras={"divergence": divergence})
    assert lengths_of(policy, view).tolist() == [10, 5]
