"""What is learned of acceptance: unbiased whatever is hidden, by request, class and pool, and
within bounded memory."""

from itertools import pairwise

import factories
import numpy as np
import pytest
from drafter_cases import LOOKUP, MODEL, RECYCLING, found, free_test, lagging

from smartspec.control import FreeTests, Plan
from smartspec.control.acceptance import effects as acceptance_effects
from smartspec.control.acceptance.estimator import AcceptanceEstimator
from smartspec.control.acceptance.logistic import sigmoid
from smartspec.control.acceptance.observations import Observations

K = 8
NEW_REQUEST = 999_999
BY_LOOKUP, BY_MODEL, BY_RECYCLING = range(3)
NOTHING_FREE = FreeTests(*np.zeros((3, 8), dtype=int))


def make_estimator():
    return AcceptanceEstimator(K, (LOOKUP, MODEL, RECYCLING))


def begin(seed):
    return np.random.default_rng(seed), make_estimator()


def make_view(ids, match=3, class_ids=None):
    num_rows = len(ids)
    matched = found(np.full(num_rows, K), np.broadcast_to(match, num_rows))
    return factories.make_view(
        ids, drafters=(matched, lagging(num_rows), matched), class_ids=class_ids
    )


def make_outcome(
    rng, conditional, lengths=K, ids=None, match=3, class_ids=None, *, drafter=BY_LOOKUP, **more
):
    """Of one synthetic step. conditional: the chance of each token, [R, K], or [R] where it is the
    same for all of a draft. lengths: int [R], or one for all."""
    if np.ndim(conditional) == 1:
        conditional = np.repeat(np.array(conditional)[:, None], K, axis=1)
    view = make_view(np.arange(len(conditional)) if ids is None else ids, match, class_ids)
    lengths = np.full(view.num_rows, lengths)
    chains = factories.draw_chains(rng, conditional, conditional.shape)
    accepted = np.minimum(chains, lengths)
    plan = Plan(lengths, np.broadcast_to(drafter, view.num_rows))
    return factories.make_outcome(view, plan, accepted=accepted, **more)


def learn(estimator, *args, **more):
    """Learns from one synthetic step; returns which positions were tested and which were accepted:
    bool [R, K] both."""
    outcome = make_outcome(*args, **more)
    estimator.observe([outcome])
    tested, hits = Observations.of([outcome]).tests(K)
    return tested.any(axis=1).T, hits.any(axis=1).T


def conditional_of(survival):
    return survival / np.concatenate([np.ones((len(survival), 1)), survival[:, :-1]], axis=1)


def predict(estimator, request_id=NEW_REQUEST, match=3, drafter=BY_LOOKUP, class_id=0):
    """Conditional acceptance of one request: float [K]."""
    view = make_view([request_id], match, np.array([class_id]))
    return conditional_of(estimator.survival(view)[drafter])[0]


def test_estimates_are_unbiased_under_censoring():
    """True conditional acceptance is recovered at every position although deep ones are rarely
    seen."""
    rng, estimator = begin(0)
    ground_truth = np.array([0.5, 0.7, 0.8, 0.85, 0.9, 0.9, 0.9, 0.9])
    for step in range(400):
        # new requests every step: no request effect can hide a bias
        ids = np.arange(16) + 16 * step
        learn(estimator, rng, np.tile(ground_truth, (16, 1)), rng.integers(0, K + 1, 16), ids)
        for request_id in ids.tolist():
            estimator.forget(request_id)
    estimates = predict(estimator)
    assert estimates[:4] == pytest.approx(ground_truth[:4], abs=0.05)
    assert estimates[4:] == pytest.approx(ground_truth[4:], abs=0.06)


def test_predictions_are_calibrated_over_requests_that_differ():
    """Good requests are tested deeper; their noise must not leak into what others are promised.
    What leaks makes acceptance be underestimated by a little more than 0.01."""
    rng, estimator = begin(2)
    predicted, happened = [], []
    for generation in range(40):
        ids = np.arange(16) + 16 * generation
        conditional = sigmoid(0.6 + 1.0 * rng.standard_normal(16))
        for _ in range(30):
            forecast = conditional_of(estimator.survival(make_view(ids))[BY_LOOKUP])
            seen, hit = learn(estimator, rng, conditional, K, ids)
            if generation >= 10:
                predicted.append(forecast[seen])
                happened.append(hit[seen])
        for request_id in ids.tolist():
            estimator.forget(request_id)
    predicted, happened = np.concatenate(predicted), np.concatenate(happened)
    assert happened.mean() == pytest.approx(predicted.mean(), abs=0.02)
    for low, high in pairwise(np.quantile(predicted, np.linspace(0, 1, 6))):
        group = (predicted >= low) & (predicted <= high)
        assert happened[group].mean() == pytest.approx(predicted[group].mean(), abs=0.05)


def test_requests_are_told_apart():
    rng, estimator = begin(3)
    conditional = [0.9, 0.3]
    for _ in range(40):
        learn(estimator, rng, conditional)
    assert predict(estimator, request_id=0)[0] > 0.8
    assert predict(estimator, request_id=1)[0] < 0.45
    before = predict(estimator)
    for request_id in (0, 1):
        estimator.forget(request_id)
        assert predict(estimator, request_id=request_id).tolist() == predict(estimator).tolist()
    assert predict(estimator) == pytest.approx(before, abs=0.02), "its class keeps what it taught"


def test_a_new_request_starts_from_its_class_and_an_unknown_class_from_the_pool():
    rng, estimator = begin(4)
    class_ids = np.repeat([1, 2], 8)
    conditional = np.where(class_ids == 1, 0.85, 0.4)
    for step in range(60):
        ids = np.arange(16) + 16 * (step // 6)
        learn(estimator, rng, conditional, K, ids, class_ids=class_ids)
    easy, hard, unknown = (predict(estimator, class_id=class_id)[0] for class_id in (1, 2, 3))
    assert easy == pytest.approx(0.85, abs=0.08)
    assert hard == pytest.approx(0.4, abs=0.1)
    assert hard + 0.1 < unknown < easy - 0.1


def test_a_request_that_changes_is_followed():
    rng, estimator = begin(4)
    others = [0.6] * 8
    for rate, num_steps, low, high in ((0.95, 80, 0.85, 1.0), (0.1, 160, 0.0, 0.35)):
        for _ in range(num_steps):
            conditional = others.copy()
            conditional[0] = rate
            learn(estimator, rng, conditional)
        assert low < predict(estimator, request_id=0)[0] < high
    assert predict(estimator, request_id=1)[0] == pytest.approx(0.6, abs=0.15)


@pytest.mark.parametrize(("before", "after"), [(0.85, 0.3), (0.3, 0.85), (0.98, 0.6)])
def test_a_change_of_all_requests_is_seen_in_one_group_of_steps(before, after):
    """A Newton step from an extreme would go too far, and one from many observations not far
    enough. New requests show it, of which nothing else is known."""
    found = []
    for seed in range(4):
        rng, estimator = begin(seed)
        for rate, num_groups in ((before, 20), (after, 1)):
            for _ in range(num_groups):
                steps = [make_outcome(rng, [rate] * 16) for _ in range(16)]
                estimator.observe(steps)
        found.append(predict(estimator)[0])
    assert np.mean(found) == pytest.approx(after, abs=0.06) and np.std(found) < 0.1


def test_chance_alone_is_no_change():
    """What is known of a steady acceptance rests on many steps, whether requests are few or
    many."""
    for rate, num_rows in ((0.6, 1), (0.95, 1), (0.8, 16)):
        rng, estimator = begin(0)
        for _ in range(60):
            estimator.observe([make_outcome(rng, [rate] * num_rows) for _ in range(16)])
        information = estimator.table()["lookup, match 3"]["observations"][0] * 0.25
        assert information > 0.6 * num_rows * max(rate * (1 - rate), 0.02) * 500, (rate, num_rows)


def test_few_observations_do_not_contradict_few():
    """An entry is an estimate, too. Taken for certain, it would be forgotten for the chance of a
    few tokens."""
    (rng, estimator), ids = begin(0), np.arange(96).reshape(2, 16, 3)
    for num_accepted, of_group in zip((26, 13), ids, strict=True):  # of 48 in a group of 16 steps
        is_accepted = rng.permutation(np.arange(48) < num_accepted).astype(float).reshape(16, 3, 1)
        lengths = np.ones(3, dtype=int)
        steps = zip(is_accepted, of_group, strict=True)
        estimator.observe([make_outcome(rng, each, lengths, row_ids) for each, row_ids in steps])
    assert estimator.table()["lookup, match 3"]["acceptance"][0] == pytest.approx(39 / 96, abs=0.03)


def test_match_lengths_are_told_apart_and_cold_ones_borrow_from_those_of_their_drafter():
    rng, estimator = begin(5)
    match = np.repeat([2, 12], 4)
    conditional = np.where(match == 2, 0.2, 0.9)
    for step in range(150):
        learn(estimator, rng, conditional, K, np.arange(8) + 8 * step, match)
    assert predict(estimator, match=2)[0] == pytest.approx(0.2, abs=0.08)
    assert predict(estimator, match=12)[0] == pytest.approx(0.9, abs=0.05)
    assert predict(estimator, match=9).tolist() == predict(estimator, match=500).tolist()
    assert 0.25 < predict(estimator, match=5)[0] < 0.85
    for other in (BY_MODEL, BY_RECYCLING):
        assert predict(estimator, match=12, drafter=other)[0] == pytest.approx(0.6), (
            "another drafter is another matter"
        )


def test_free_tests_of_a_drafter_teach_it_while_another_drafts():
    rng, estimator = begin(6)
    for step in range(100):
        free = free_test(0, (rng.random(8) < 0.2).astype(int))
        more = {"drafter": BY_LOOKUP, "free_tests": (NOTHING_FREE, NOTHING_FREE, free)}
        learn(estimator, rng, [0.8] * 8, 3, np.arange(8) + 8 * step, **more)
    assert predict(estimator)[0] == pytest.approx(0.8, abs=0.05)
    assert predict(estimator, drafter=BY_RECYCLING)[0] == pytest.approx(0.2, abs=0.07)


def test_off_policy_feedback_of_a_draft_prefill_teaches_the_first_position_and_the_request():
    rng, estimator = begin(6)
    lookup_before = predict(estimator)
    guessed, nothing = np.full(8, 6), np.zeros(8, int)
    rates = np.where(np.arange(8) < 4, 0.9, 0.5)
    for _ in range(40):
        free = FreeTests(nothing, guessed, rng.binomial(guessed, rates))
        learn(estimator, rng, [0.0] * 8, 0, free_tests=(NOTHING_FREE, free))
    assert predict(estimator, drafter=BY_MODEL)[0] == pytest.approx(0.74, abs=0.05)
    assert predict(estimator, request_id=0, drafter=BY_MODEL)[0] == pytest.approx(0.9, abs=0.07)
    assert predict(estimator, request_id=7, drafter=BY_MODEL)[0] == pytest.approx(0.5, abs=0.1)
    assert predict(estimator).tolist() == lookup_before.tolist()


def test_a_long_draft_prefill_counts_as_a_short_one():
    estimators = []
    for guessed in (16, 1600):
        estimators.append(make_estimator())
        free = FreeTests(np.array([0]), np.array([guessed]), np.array([guessed // 4]))
        nothing = FreeTests(*np.zeros((3, 1), dtype=int))
        learn(estimators[-1], np.random.default_rng(0), [0.0], 0, free_tests=(nothing, free))
    few, many = (predict(estimator, drafter=BY_MODEL) for estimator in estimators)
    assert few == pytest.approx(many)
    assert few[0] < 0.5


def test_a_draft_that_is_always_right_is_nearly_sure():
    rng, estimator = begin(7)
    for step in range(100):
        learn(
            estimator,
            rng,
            [1.0] * 4,
            np.full(4, K),
            np.arange(4) + 4 * (step // 10),
            drafter=BY_MODEL,
        )
    assert predict(estimator, drafter=BY_MODEL).min() > 0.97


def test_what_is_kept_of_a_batch_is_of_its_rows_and_not_older_than_the_last_lesson():
    (rng, estimator), lengths = begin(5), np.full(3, 4)
    ids, permuted = np.array([4, 5, 6]), np.array([6, 4, 5])
    before = estimator.survival(make_view(ids))[BY_LOOKUP]
    for _ in range(3):
        learn(estimator, rng, np.array([[0.95], [0.5], [0.1]]) * np.ones(K), lengths, ids)
        after = estimator.survival(make_view(ids))[BY_LOOKUP]
        assert (after[:, 0] != before[:, 0]).all(), "three requests that were seen to differ"
        assert np.array_equal(estimator.survival(make_view(permuted))[BY_LOOKUP], after[[2, 0, 1]])
        before = after
    estimator.forget(4)
    ended, never_seen = (
        estimator.survival(make_view(ids))[BY_LOOKUP][0] for ids in (ids, np.array([NEW_REQUEST]))
    )
    assert np.array_equal(ended, never_seen)


def test_memory_is_bounded_and_forget_is_harmless(monkeypatch):
    monkeypatch.setattr(acceptance_effects, "MAX_TRACKED_REQUESTS", 16)
    rng, estimator = begin(9)
    for step in range(20):
        learn(estimator, rng, [0.5] * 4, K, np.arange(4) + 4 * step)
    assert estimator.num_tracked_requests == 16
    for request_id in range(-5, 200):
        estimator.forget(request_id)
    assert estimator.num_tracked_requests == 0
    assert predict(estimator, request_id=79).tolist() == predict(estimator).tolist()


def test_requests_given_up_while_preempted_leave_their_class_sound():
    """Taken from sums they were no longer part of, they would make the weight of their class
    negative."""
    rng, estimator = begin(11)
    ids = np.arange(40)
    ground_truth = rng.uniform(0.4, 0.7, 40)
    for _ in range(10):
        learn(estimator, rng, ground_truth, K, ids)
    before = predict(estimator)
    learn(estimator, rng, [0.6], K, np.array([NEW_REQUEST]))
    for request_id in ids.tolist():
        estimator.forget(request_id)
    assert predict(estimator) == pytest.approx(before, abs=0.1)
    assert (estimator._effects._shares[0] >= 0).all()


def test_two_requests_that_claim_one_row_do_no_harm(monkeypatch):
    monkeypatch.setattr(acceptance_effects, "MAX_TRACKED_REQUESTS", 16)
    rng, estimator = begin(9)
    for _ in range(30):
        learn(estimator, rng, [0.9, 0.2], K, np.array([3, 19]))
    assert estimator.num_tracked_requests == 1
    assert predict(estimator, request_id=5).tolist() == predict(estimator).tolist()
    assert 0.2 < predict(estimator)[0] < 0.9


def test_unobserved_rows_take_no_memory():
    estimator = make_estimator()
    learn(estimator, np.random.default_rng(0), [0.0] * 3, 0)
    assert estimator.num_tracked_requests == 0


def test_what_is_known_from_elsewhere_is_expected_until_traffic_says_otherwise():
    rng, estimator = begin(12)
    estimator.survival(make_view([NEW_REQUEST]))  # what is kept of it is dropped
    estimator.expect(BY_MODEL, [0.9, 0.3, 1.0], [5000, 5000, 5000])
    assert predict(estimator, drafter=BY_MODEL)[:2] == pytest.approx([0.9, 0.3], abs=0.02)
    assert predict(estimator, drafter=BY_MODEL)[2] > 0.9, "not certain"
    before = predict(estimator, drafter=BY_LOOKUP)
    estimator.expect(BY_LOOKUP, [0.1], [5000])  # several pools: it is not said which
    assert np.array_equal(predict(estimator, drafter=BY_LOOKUP), before)
    for step in range(400):
        learn(estimator, rng, [0.5] * 8, np.full(8, K), np.arange(8) + 8 * step, drafter=BY_MODEL)
    assert predict(estimator, drafter=BY_MODEL)[:2] == pytest.approx([0.5, 0.5], abs=0.08)


def test_little_known_from_elsewhere_counts_little():
    much, little = make_estimator(), make_estimator()
    for estimator, tested in ((much, 1000), (little, 2)):
        estimator.expect(BY_MODEL, [0.1], [tested])
    assert predict(much, drafter=BY_MODEL)[0] < 0.15 < predict(little, drafter=BY_MODEL)[0]
