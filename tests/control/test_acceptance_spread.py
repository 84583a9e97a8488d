"""How much requests differ is learned, from a batch of them or from one after the other."""

import numpy as np
import pytest
from test_acceptance import K, conditional_of, learn, make_estimator, make_view

from smartspec.control.acceptance.logistic import sigmoid
from smartspec.control.acceptance.spread import START_VARIANCE, RequestSpread

ROWS = 16


def requests_come_and_go(estimator, rng, spread, generations=20, num_rows=ROWS, num_steps=30):
    """Batches of requests whose log-odds scatter that much; after each, all end."""
    for generation in range(generations):
        ids = np.arange(num_rows) + num_rows * generation
        log_odds = 0.6 + spread * rng.standard_normal(num_rows)
        conditional = np.tile(sigmoid(log_odds)[:, None], (1, K))
        for _ in range(num_steps):
            yield ids, conditional
        for request_id in ids.tolist():
            estimator.forget(request_id)


def learned_variance(spread, seed, **how):
    rng, estimator = np.random.default_rng(seed), make_estimator()
    for ids, conditional in requests_come_and_go(estimator, rng, spread, **how):
        learn(estimator, rng, conditional, np.full(len(ids), K), ids)
    return 1.0 / float(estimator._effects._spread.strength[0, 0])


@pytest.mark.parametrize(("spread", "low", "high"), [(0.0, 0.1, 0.15), (0.7, 0.3, 0.8), (1.2, 0.8, 2.2)])
@pytest.mark.parametrize("how", [{}, {"num_rows": 1, "generations": 120}], ids=["together", "one after the other"])
def test_the_variance_between_requests_is_found(spread, low, high, how):
    variances = [learned_variance(spread, seed, **how) for seed in range(3)]
    assert low <= np.mean(variances) <= high


def test_nothing_seen_changes_nothing():
    spread, nothing = RequestSpread(2), np.zeros((2, 5))
    spread.learn(nothing, nothing, np.ones((2, 5)), nothing)
    assert spread.strength.tolist() == [[1 / START_VARIANCE], [1 / START_VARIANCE]]


def test_what_a_new_request_is_promised_holds_at_every_position():
    """Requests that get far are the good ones: given that, their later tokens are surer than their first."""
    rng, estimator = np.random.default_rng(4), make_estimator()
    promised, kept, seen_by = np.zeros(K), np.zeros(K), np.zeros(K)
    for step, (ids, conditional) in enumerate(requests_come_and_go(estimator, rng, 1.0, generations=150, num_steps=8)):
        forecast = conditional_of(estimator.survival(make_view(ids))[0])
        seen, hit = learn(estimator, rng, conditional, np.full(ROWS, K), ids)
        if step >= 400:
            promised += (forecast * seen).sum(axis=0)
            kept += (hit & seen).sum(axis=0)
            seen_by += seen.sum(axis=0)
    assert promised / seen_by == pytest.approx(kept / seen_by, abs=0.025)
