import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartspec.control import CostCurve
from smartspec.control.latency.cost_correction import CostCorrection, PassSize
from smartspec.control.latency.cost_curve import KNOTS
from smartspec.control.latency.robust_mean import RobustMean

PROFILE = CostCurve((1.0, 8.0), (0.0005, 0.002), 0.036, per_context_token=1e-6, per_row=1e-5)


def size(fed, context=1000.0, rows=4, prefill=0):
    return PassSize(
        fed, context, rows, np.asarray(fed) * context / rows, np.asarray(fed) - prefill, prefill
    )


def observe(model, pass_size, seconds, is_first_use=False):
    model.observe(model.features(pass_size), np.array([seconds]), np.array([is_first_use]))


def seconds(model, fed, **kwargs):
    return float(model.seconds(size(fed, **kwargs)))


def profiled(fed, **kwargs):
    return seconds(CostCorrection(PROFILE), fed, **kwargs)


def curves():
    slope = st.floats(0.0, 0.01)
    knots = st.sampled_from([(0.0,), (1.0,), (1.0, 5.0, 30.0), tuple(map(float, KNOTS))])
    coefficient = st.sampled_from([0.0, 1e-7, 1e-5])

    def build(knots, slopes, constant, context, attended, scored):
        slopes = tuple(slopes[: len(knots)])
        return CostCurve(knots, slopes, constant, context, 1e-5, attended, scored)

    slopes = st.lists(slope, min_size=len(KNOTS), max_size=len(KNOTS))
    return st.builds(
        build,
        knots,
        slopes,
        st.sampled_from([0.0, 1e-4, 0.03, 1.0]),
        coefficient,
        coefficient,
        coefficient,
    )


passes = st.tuples(
    st.integers(1, 300),
    st.integers(0, 2000),
    st.integers(0, 3000),
    st.floats(1e-5, 100.0),
    st.booleans(),
)


@given(curves(), st.lists(passes, max_size=30))
@settings(max_examples=60, deadline=None)
def test_whatever_is_measured_times_stay_positive_finite_and_monotone(curve, history):
    model = CostCorrection(curve)
    for rows, drafts, context, measured, has_prefill in history:
        observe(
            model,
            size(rows + drafts, context * rows, rows, prefill=drafts if has_prefill else 0),
            measured,
        )
    for rows, context, prefill in ((1, 10.0, 0), (64, 1e5, 0), (8, 1e4, 500)):
        fed = rows + prefill + np.arange(1500)
        times = model.seconds(size(fed, context, rows, prefill))
        assert np.isfinite(times).all()
        assert (times > 0).all()
        assert (np.diff(times) >= -1e-12 * times[1:]).all()
        assert np.isfinite(model._covariance).all()
    json.dumps(model.state(), allow_nan=False)


@given(
    curves(),
    st.lists(passes, max_size=10),
    st.lists(st.integers(0, 2**22), min_size=1, max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_one_pass_takes_as_long_as_the_same_among_many(curve, history, fed):
    model = CostCorrection(curve)
    for rows, drafts, context, measured, _ in history:
        observe(model, size(rows + drafts, context * rows, rows), measured)
    of_many = model.seconds(size(np.array(fed), context=500.0, rows=3)).tolist()
    of_each = [model.seconds_of_one(PassSize(n, 500.0, 3, n * 500.0 / 3, n)) for n in fed]
    assert of_each == pytest.approx(of_many, rel=1e-14)


def test_an_estimate_that_has_become_negative_is_put_right_by_the_next_pass():
    """A first guess, ever larger passes: the filter's own estimate for the last kind of pass is
    below zero. Measured against zero instead, it hardly moved, and times were predicted to be six
    times too short."""
    ground_truth = CostCorrection(
        CostCurve(
            (1.0, 64.0, 256.0), (1e-5, 3e-5, 1e-4), 0.02, 2e-8, 1e-5, per_attended_token=1e-10
        )
    )
    small, large = size(28, 4_000.0, 8), size(124, 6_400_000.0, 64)
    prefill_small, prefill_large = (
        size(8220, 8_000.0, 9, prefill=8192),
        size(8316, 6_400_000.0, 65, prefill=8192),
    )
    model = CostCorrection(CostCurve.linear(0.04, 0.002))
    passes = [small] * 10 + [prefill_small] * 3 + [large] * 2 + [prefill_large] * 4
    for pass_size in passes:
        observe(model, pass_size, float(ground_truth.seconds(pass_size)))
    assert float(model.seconds(prefill_large)) == pytest.approx(
        float(ground_truth.seconds(prefill_large)), rel=0.05
    )


def test_a_covariance_that_rounding_has_spoilt_is_begun_anew():
    """Passes of very different sizes can make a variance negative; it then was the root of a
    negative number."""
    model = CostCorrection(PROFILE)
    features = model.features(size(40))[0]
    model._covariance -= 2.0 * np.outer(model._theta, model._theta)
    assert features @ model._covariance @ features < 0.0
    for _ in range(10):
        observe(model, size(40), 1.8 * profiled(40))
    assert seconds(model, 40) == pytest.approx(1.8 * profiled(40), rel=0.02)


@given(curves(), st.integers(1, 700), st.integers(0, 100_000), st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_before_any_measurement_it_is_the_profile(curve, fed, context, rows):
    model = CostCorrection(curve)
    profiled = np.maximum(curve.seconds(fed, context, rows, fed * context / rows), 1e-9)
    assert seconds(model, fed, context=float(context), rows=rows) == pytest.approx(float(profiled))


def test_two_sizes_tell_a_wrong_slope_from_a_slower_machine():
    """After eight steps. Were errors common to all coefficients alone, the slope would stay wrong;
    were each by itself alone, a slower machine would be learned size by size."""
    wrong_slope = CostCorrection(
        CostCurve((1.0, 8.0), (0.0005, 0.0011), 0.036, per_context_token=1e-6, per_row=1e-5)
    )
    slower, rng = CostCorrection(PROFILE), np.random.default_rng(0)
    for step in range(8):
        noise, fed = np.exp(0.03 * rng.standard_normal()), 40 if step % 2 else 4
        observe(wrong_slope, size(fed), profiled(fed) * noise)
        observe(slower, size(4), 1.5 * profiled(4) * noise)
    extra = seconds(wrong_slope, 40) - seconds(wrong_slope, 4)
    assert extra == pytest.approx(profiled(40) - profiled(4), rel=0.1)
    assert seconds(slower, 40) == pytest.approx(1.5 * profiled(40), rel=0.05)


def test_a_context_the_profile_thought_free_is_learned():
    model = CostCorrection(CostCurve(PROFILE.knots, PROFILE.slopes, PROFILE.constant, per_row=1e-5))
    rng = np.random.default_rng(0)
    for _ in range(100):
        fed, context = int(rng.integers(4, 36)), float(rng.uniform(4_000, 40_000))
        observe(
            model,
            size(fed, context),
            profiled(fed, context=context) * np.exp(0.03 * rng.standard_normal()),
        )
    for context in (4_000.0, 20_000.0, 40_000.0):
        assert seconds(model, 8, context=context) == pytest.approx(
            profiled(8, context=context), rel=0.05
        )


def test_outliers_are_bounded_and_a_lasting_change_is_believed():
    model, plain = CostCorrection(PROFILE), profiled(12)
    for _ in range(50):
        observe(model, size(12), plain)
    for _ in range(2):
        observe(model, size(12), 5 * plain)
    assert seconds(model, 12) == pytest.approx(plain, rel=0.03)
    for _ in range(20):
        observe(model, size(12), plain / 0.7)
    assert seconds(model, 12) == pytest.approx(plain / 0.7, rel=0.03)


def test_the_first_use_of_a_size_counts_less():
    plain, moved = profiled(12), []
    for is_first_use in (False, True):
        model, rng = CostCorrection(PROFILE), np.random.default_rng(0)
        for _ in range(100):
            observe(model, size(12), plain * np.exp(0.03 * rng.standard_normal()))
        before = seconds(model, 12)
        observe(model, size(12), 1.05 * before, is_first_use)
        moved.append(seconds(model, 12) - before)
    assert 0 < moved[1] < 0.2 * moved[0]


def test_doubt_stays_bounded_where_nothing_is_ever_measured():
    """A direction without excitation must not wind up: the first innovation there would then be
    believed blindly."""
    model, start = CostCorrection(PROFILE), CostCorrection(PROFILE)
    direction = (model.features(size(200)) - model.features(size(12)))[0]
    for _ in range(5000):
        observe(model, size(12), seconds(start, 12))
    assert direction @ model._covariance @ direction <= direction @ start._covariance @ direction
    std = np.sqrt(np.diag(start._covariance))
    uncertain = np.ix_(std > 0, std > 0)
    assert (
        np.linalg.eigvalsh(model._covariance[uncertain] / np.outer(std, std)[uncertain]).min()
        > -1e-9
    )


def test_a_running_mean_shrugs_at_outliers_and_follows_jumps():
    mean, rng = RobustMean(), np.random.default_rng(0)
    for _ in range(100):
        mean.observe(float(0.002 * np.exp(0.1 * rng.standard_normal())))
    before = mean.mean
    mean.observe(2.0)
    assert mean.mean == pytest.approx(before, rel=0.05)
    for _ in range(50):
        mean.observe(0.01)
    assert mean.mean == pytest.approx(0.01, rel=0.05)
    for _ in range(60):
        mean.observe(0.0)
    assert 0 <= mean.mean < 0.001


def test_passes_learned_together_tell_what_a_draft_token_costs_as_well_as_one_by_one():
    """In a mixture of steps with and without drafts, their sum would only tell the mean."""
    rng, together, alone = (
        np.random.default_rng(0),
        CostCorrection(PROFILE),
        CostCorrection(PROFILE),
    )

    def true_seconds(fed):
        return 0.036 + 0.0005 * 4 + 0.0008 * (fed - 4)

    for _ in range(20):
        fed = rng.choice([4, 6], 8)
        measured = true_seconds(fed) * (1 + 0.01 * rng.standard_normal(8))
        sizes = PassSize(*np.array([[n, 1000.0, 4, n * 250.0, n, 0] for n in fed], dtype=float).T)
        together.observe(together.features(sizes), measured, np.zeros(8, dtype=bool))
        for n, one in zip(fed, measured, strict=True):
            observe(alone, size(n), one)
    for model in (together, alone):
        assert seconds(model, 6) - seconds(model, 4) == pytest.approx(2 * 0.0008, rel=0.25)
    assert seconds(together, 6) - seconds(together, 4) == pytest.approx(
        seconds(alone, 6) - seconds(alone, 4), rel=0.05
    )
