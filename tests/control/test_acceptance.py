from itertools import pairwise

import numpy as np
import pytest

from smartspec.control import acceptance
from smartspec.control.acceptance import AcceptanceEstimator, observations

K = 8


def truncated_drafts(rng, conditional, lengths):
    """Accepted and tested counts of drafts whose j-th token is accepted with conditional[:, j], cut at lengths."""
    positions = np.arange(conditional.shape[1])
    accepted_all = np.cumprod(rng.random(conditional.shape) < conditional, axis=1)
    accepted = (accepted_all * (positions < lengths[:, None])).sum(axis=1)
    return accepted, np.minimum(accepted + 1, lengths)


def learn(estimator, rng, conditional, lengths, ids=None, evidence=None, use_model=False, next_match=None):
    """One synthetic step; returns what was observed of it."""
    num_rows = len(conditional)
    ids = np.arange(num_rows) if ids is None else ids
    accepted, tested = truncated_drafts(rng, conditional, lengths)
    unknown = np.full(num_rows, -1) if next_match is None else next_match
    seen, hit = observations(estimator.max_draft_tokens, lengths, tested, accepted, unknown)
    evidence = np.full(num_rows, 3) if evidence is None else evidence
    estimator.observe(ids, np.full(num_rows, use_model), evidence, seen, hit)
    return seen, hit


def predict(estimator, request_id=999_999, evidence=3, use_model=False):
    """Conditional acceptance of a request nothing is known of: float [K]."""
    survival = estimator.survival(np.array([request_id]), np.array([use_model]), np.array([evidence]))[0]
    return survival / np.concatenate([[1.0], survival[:-1]])


def test_observations_stop_at_the_first_rejection():
    seen, hit = observations(4, np.array([4, 4, 2]), np.array([2, 4, 2]), np.array([1, 4, 2]), np.array([-1, -1, -1]))
    assert seen.astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]]
    assert hit.astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]]


def test_positions_behind_a_rejection_are_hidden_even_if_called_tested():
    seen, _ = observations(4, np.array([4]), np.array([4]), np.array([1]), np.array([-1]))
    assert seen.astype(int).tolist() == [[1, 1, 0, 0]]


def test_tokens_dropped_by_a_stop_rule_are_no_observations():
    seen, hit = observations(4, np.array([4]), np.array([2]), np.array([4]), np.array([1]))
    assert seen.astype(int).tolist() == hit.astype(int).tolist() == [[1, 1, 0, 0]]


def test_free_evidence_counts_only_behind_a_fully_accepted_draft():
    verified, tested, accepted = np.array([0, 1, 2, 0, 4]), np.array([0, 1, 1, 0, 4]), np.array([0, 1, 0, 0, 4])
    seen, hit = observations(4, verified, tested, accepted, np.array([1, 0, 1, -1, 1]))
    assert seen.astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
    assert hit.astype(int).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]


def test_estimates_are_unbiased_under_censoring():
    """True conditional acceptance is recovered at every position although deep ones are rarely seen."""
    rng, estimator = np.random.default_rng(0), AcceptanceEstimator(K)
    truth = np.array([0.5, 0.7, 0.8, 0.85, 0.9, 0.9, 0.9, 0.9])
    for step in range(400):
        ids = np.arange(16) + 16 * step  # new requests every step: no request effect can hide a bias
        learn(estimator, rng, np.tile(truth, (16, 1)), rng.integers(0, K + 1, 16), ids)
        for request_id in ids.tolist():
            estimator.forget(request_id)
    estimates = predict(estimator)
    assert estimates[:4] == pytest.approx(truth[:4], abs=0.05)
    assert estimates[4:] == pytest.approx(truth[4:], abs=0.06)


def test_a_constant_rate_is_not_confused_with_accepted_over_drafted():
    """Accepted / drafted would say 0.54 here (arXiv 2406.14066's request-level prototype)."""
    rng, estimator = np.random.default_rng(1), AcceptanceEstimator(5)
    for _ in range(300):
        learn(estimator, rng, np.full((8, 5), 0.8), np.full(8, 5))
    assert predict(estimator)[:5] == pytest.approx(0.8, abs=0.04)


def test_predictions_are_calibrated_over_requests_that_differ():
    """Good requests are tested deeper; their luck must not leak into what others are promised."""
    rng, estimator = np.random.default_rng(2), AcceptanceEstimator(K)
    predicted, happened = [], []
    for generation in range(40):
        ids = np.arange(16) + 16 * generation
        log_odds = 0.6 + 1.0 * rng.standard_normal(16)
        conditional = np.tile(1 / (1 + np.exp(-log_odds))[:, None], (1, K))
        for _ in range(30):
            forecast = estimator.survival(ids, np.zeros(16, bool), np.full(16, 3))
            before = np.concatenate([np.ones((16, 1)), forecast[:, :-1]], axis=1)
            seen, hit = learn(estimator, rng, conditional, np.full(16, K), ids)
            if generation >= 10:
                predicted.append((forecast / before)[seen])
                happened.append(hit[seen])
    predicted, happened = np.concatenate(predicted), np.concatenate(happened)
    assert happened.mean() == pytest.approx(predicted.mean(), abs=0.01)
    edges = np.quantile(predicted, np.linspace(0, 1, 6))
    for low, high in pairwise(edges):
        group = (predicted >= low) & (predicted <= high)
        assert happened[group].mean() == pytest.approx(predicted[group].mean(), abs=0.05)


def test_requests_are_told_apart():
    rng, estimator = np.random.default_rng(3), AcceptanceEstimator(K)
    conditional = np.repeat([[0.9], [0.3]], K, axis=1)
    for _ in range(40):
        learn(estimator, rng, conditional, np.full(2, K))
    assert predict(estimator, request_id=0)[0] > 0.8
    assert predict(estimator, request_id=1)[0] < 0.45
    estimator.forget(0)
    assert predict(estimator, request_id=0).tolist() == predict(estimator).tolist()


def test_a_request_that_changes_is_followed():
    rng, estimator = np.random.default_rng(4), AcceptanceEstimator(K)
    others = np.full((8, K), 0.6)
    for rate, low, high in ((0.95, 0.85, 1.0), (0.1, 0.0, 0.35)):
        for _ in range(80):
            conditional = others.copy()
            conditional[0] = rate
            learn(estimator, rng, conditional, np.full(8, K))
        assert low < predict(estimator, request_id=0)[0] < high
    assert predict(estimator, request_id=1)[0] == pytest.approx(0.6, abs=0.15)


def test_evidence_classes_are_told_apart_and_cold_ones_borrow():
    rng, estimator = np.random.default_rng(5), AcceptanceEstimator(K)
    evidence = np.repeat([2, 12], 4)
    conditional = np.repeat(np.where(evidence == 2, 0.2, 0.9)[:, None], K, axis=1)
    for step in range(150):
        learn(estimator, rng, conditional, np.full(8, K), np.arange(8) + 8 * step, evidence)
    assert predict(estimator, evidence=2)[0] == pytest.approx(0.2, abs=0.08)
    assert predict(estimator, evidence=12)[0] == pytest.approx(0.9, abs=0.05)
    assert predict(estimator, evidence=9).tolist() == predict(estimator, evidence=500).tolist()
    assert 0.25 < predict(estimator, evidence=5)[0] < 0.85
    assert predict(estimator, use_model=True)[0] == pytest.approx(0.6)


def test_free_evidence_alone_teaches_the_first_position():
    rng, estimator = np.random.default_rng(6), AcceptanceEstimator(K)
    for step in range(100):
        ids = np.arange(8) + 8 * step
        outcome = (rng.random(8) < 0.15).astype(int)
        learn(estimator, rng, np.zeros((8, K)), np.zeros(8, int), ids, next_match=outcome)
    assert predict(estimator)[0] == pytest.approx(0.15, abs=0.05)


def test_a_draft_that_is_always_right_is_nearly_sure():
    rng, estimator = np.random.default_rng(7), AcceptanceEstimator(K)
    for step in range(100):
        learn(estimator, rng, np.ones((4, K)), np.full(4, K), np.arange(4) + 4 * (step // 10), use_model=True)
    assert predict(estimator, use_model=True).min() > 0.97


def test_a_drafter_written_off_is_tried_again_in_the_end():
    rng, estimator = np.random.default_rng(8), AcceptanceEstimator(K)
    for step in range(100):
        learn(estimator, rng, np.zeros((8, K)), np.full(8, 4), np.arange(8) + 8 * step, use_model=True)
    assert predict(estimator, use_model=True)[0] < 0.02
    nothing = np.zeros((1, K), dtype=bool)
    for _ in range(5_000):
        estimator.observe(np.array([5]), np.array([False]), np.array([0]), nothing, nothing)
    assert predict(estimator, use_model=True)[0] > 0.4


def test_memory_is_bounded_and_forget_is_harmless(monkeypatch):
    monkeypatch.setattr(acceptance, "MAX_TRACKED_REQUESTS", 16)
    rng, estimator = np.random.default_rng(9), AcceptanceEstimator(K)
    for step in range(20):
        learn(estimator, rng, np.full((4, K), 0.5), np.full(4, K), np.arange(4) + 4 * step)
    assert estimator.num_tracked_requests == 16
    for request_id in range(-5, 200):
        estimator.forget(request_id)
    assert estimator.num_tracked_requests == 0
    assert predict(estimator, request_id=79).tolist() == predict(estimator).tolist()


def test_unobserved_rows_take_no_memory():
    estimator = AcceptanceEstimator(K)
    nothing = np.zeros((3, K), dtype=bool)
    estimator.observe(np.arange(3), np.zeros(3, bool), np.zeros(3, int), nothing, nothing)
    assert estimator.num_tracked_requests == 0


def test_survival_falls_along_a_draft():
    rng, estimator = np.random.default_rng(10), AcceptanceEstimator(K)
    for _ in range(50):
        learn(estimator, rng, rng.random((6, K)), rng.integers(0, K + 1, 6), evidence=rng.integers(0, 12, 6))
    survival = estimator.survival(np.arange(6), rng.random(6) < 0.5, rng.integers(0, 12, 6))
    assert ((survival > 0) & (survival <= 1)).all()
    assert (np.diff(survival, axis=1) <= 0).all()
