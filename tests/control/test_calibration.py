"""What a confidence is worth is learned, and never falls as confidence grows."""

import json

import factories
import numpy as np
import pytest
from drafter_cases import MODEL
from hypothesis import given, settings
from hypothesis import strategies as st

from smartspec.control import Plan
from smartspec.control.acceptance.calibration import (
    MIDPOINTS,
    NUM_BUCKETS,
    ConfidenceCalibration,
    isotonic,
)
from smartspec.control.acceptance.estimator import AcceptanceEstimator
from smartspec.control.acceptance.logistic import sigmoid

K = 6
BY_MODEL = np.zeros(8, dtype=int)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 100)), min_size=1, max_size=8))
def test_isotonic_regression_is_the_largest_of_the_least_means(pairs):
    """The formula of Robertson, Wright and Dykstra 1988, section 1.4."""
    values, weights = np.array(pairs).T
    num = len(values)

    def least_mean(first, place):
        ends = range(place + 1, num + 1)
        return min(np.average(values[first:end], weights=weights[first:end]) for end in ends)

    expected = [max(least_mean(i, place) for i in range(place + 1)) for place in range(num)]
    assert isotonic(values, weights) == pytest.approx(expected, abs=1e-9)


def test_nothing_known_lies_between_the_confidence_and_the_mean():
    calibration = ConfidenceCalibration()
    values = sigmoid(calibration.log_odds(np.array([0.05, 0.5, 0.95]), np.zeros(3)))
    assert values[1] == pytest.approx(0.5)
    assert 0.05 < values[0] < 0.5 < values[2] < 0.95


def test_an_overconfident_drafter_is_corrected():
    rng, calibration = np.random.default_rng(0), ConfidenceCalibration()
    for _ in range(300):
        confidence = rng.random(30)
        calibration.learn(confidence, np.zeros(30), (rng.random(30) < confidence**2).astype(float))
    at = np.array([0.25, 0.45, 0.65, 0.85])
    assert sigmoid(calibration.log_odds(at, np.zeros(4))) == pytest.approx(at**2, abs=0.06)


def test_monotone_whatever_is_observed():
    rng, calibration = np.random.default_rng(1), ConfidenceCalibration()
    grid = np.linspace(0, 1, 200)
    for _ in range(200):
        confidence = rng.random(int(rng.integers(0, 6)))
        # the surer, the more often wrong
        outcome = (rng.random(len(confidence)) < 1 - confidence).astype(float)
        calibration.learn(confidence, rng.standard_normal(len(confidence)), outcome)
        assert (np.diff(calibration.log_odds(grid, np.zeros(200))) >= -1e-12).all()
    assert np.ptp(calibration.acceptance) < 0.35


def test_history_shifts_a_confidence_by_a_part_of_what_it_says():
    """Of what is known of a request, beyond its mean, confidence says the rest."""
    rng, calibration = np.random.default_rng(2), ConfidenceCalibration()
    for _ in range(400):
        confidence, history = rng.uniform(0.1, 0.9, 16), 0.7 + rng.standard_normal(16)
        ground_truth = sigmoid(np.log(confidence / (1 - confidence)) + 0.5 * (history - 0.7))
        calibration.learn(confidence, history, (rng.random(16) < ground_truth).astype(float))
    at = np.full(3, 0.45)
    log_odds = calibration.log_odds(at, np.array([-0.3, 0.7, 1.7]))
    assert np.diff(log_odds) == pytest.approx(np.full(2, 0.5))
    assert sigmoid(log_odds[1]) == pytest.approx(0.45, abs=0.06), (
        "a request like the mean is shifted by nothing"
    )


def test_a_drafter_that_changes_is_followed():
    rng, calibration = np.random.default_rng(3), ConfidenceCalibration()
    for rate, num_steps in ((0.9, 300), (0.3, 600)):
        for _ in range(num_steps):
            confidence = rng.uniform(0.8, 0.9, 16)
            calibration.learn(confidence, np.zeros(16), (rng.random(16) < rate).astype(float))
    bucket = int(np.abs(MIDPOINTS - 0.85).argmin())
    assert calibration.acceptance[bucket] == pytest.approx(0.3, abs=0.07)


def test_the_table_is_json_able():
    table = json.loads(json.dumps(ConfidenceCalibration().table()))
    assert len(table["acceptance"]) == len(table["confidence"]) == NUM_BUCKETS


def step(estimator, rng, num_rows, threshold=0.0, ids=None, ease=0.0):
    """A draft model whose token of confidence c is accepted with odds c / (1 - c) * exp(ease);
    drafts are verified up to the first confidence below threshold. Returns view and confidence."""
    confidence = rng.uniform(0.05, 0.95, (num_rows, K))
    acceptance = sigmoid(np.log(confidence / (1 - confidence)) + np.reshape(ease, (-1, 1)))
    chains = factories.draw_chains(rng, acceptance, (num_rows, K))
    verified = np.cumprod(confidence >= threshold, axis=1).sum(axis=1)
    accepted = np.minimum(chains, verified)
    view = factories.make_view(num_rows if ids is None else ids, lag=0, row_caps=K)
    plan = Plan(np.full(num_rows, K), np.zeros(num_rows, dtype=int))
    outcome = factories.make_outcome(
        view, plan, verified, accepted, drafted=plan.lengths, confidence=confidence
    )
    estimator.observe([outcome])
    return view, confidence


def test_survival_follows_confidence_where_there_is_one_and_history_elsewhere():
    rng, estimator = np.random.default_rng(4), AcceptanceEstimator(K, (MODEL,))
    for _ in range(200):
        view, _ = step(estimator, rng, 8)
    confidence = np.full((8, K), np.nan)
    history = estimator.survival(view)[0]
    assert (
        estimator.survival_given_confidence(view, BY_MODEL, confidence).tolist() == history.tolist()
    )
    confidence[0], confidence[1], confidence[2, 0] = 0.9, 0.1, 0.9
    survival = estimator.survival_given_confidence(view, BY_MODEL, confidence)
    assert survival[3:].tolist() == history[3:].tolist()
    assert survival[0, 0] == pytest.approx(0.9, abs=0.06)
    assert survival[1, 0] == pytest.approx(0.1, abs=0.06)
    assert survival[2, 1] / survival[2, 0] == pytest.approx(history[2, 1] / history[2, 0])
    assert (np.diff(survival, axis=1) <= 0).all()


def test_at_the_same_confidence_an_easy_request_is_promised_more():
    survival = []
    for seed in range(6):
        rng, estimator = np.random.default_rng(seed), AcceptanceEstimator(K, (MODEL,))
        for _ in range(150):
            view, _ = step(estimator, rng, 8, ease=np.where(np.arange(8) < 4, 1.0, -1.0))
        survival.append(
            estimator.survival_given_confidence(view, BY_MODEL, np.full((8, K), 0.5))[:, 0]
        )
    easy, hard = np.mean(survival, axis=0).reshape(2, 4).mean(axis=1)
    assert 0.57 < easy < sigmoid(1.0)
    assert sigmoid(-1.0) < hard < 0.5


def test_cutting_by_confidence_does_not_make_the_history_rosy():
    """Only confident tokens are verified, yet before drafting the confidence is not known: the
    first draft token is accepted half the time, not three times in four. Now and then all are
    verified, else nothing could tell."""
    rng, estimator = np.random.default_rng(6), AcceptanceEstimator(K, (MODEL,))
    for index in range(400):
        step(
            estimator,
            rng,
            8,
            threshold=0.5 if index % 10 else 0.0,
            ids=np.arange(8) + 8 * (index // 40),
        )
    new = factories.make_view([99_999], lag=0, row_caps=K)
    assert estimator.survival(new)[0, 0, 0] == pytest.approx(0.5, abs=0.07)
