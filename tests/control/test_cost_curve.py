import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartspec.control import CostCurve, ProfileSample
from smartspec.control.latency.nnls import solve_nnls

GRID = [
    (rows, per_row * rows, context)
    for rows in (1, 2, 4, 8, 16, 32)
    for per_row in (1, 2, 4, 8)
    for context in (64, 512)
]


def measured_samples(noise=0.0):
    """A machine that is memory-bound up to 8 tokens and compute-bound from there, with attention on
    top."""
    rng = np.random.default_rng(0)
    return [
        ProfileSample(
            fed,
            context * rows,
            rows,
            (
                0.036
                + 0.0005 * min(fed, 8)
                + 0.002 * max(fed - 8, 0)
                + 1e-6 * fed * context
                + 2e-7 * context * rows
            )
            * np.exp(noise * rng.standard_normal()),
        )
        for rows, fed, context in GRID
    ]


@given(st.integers(1, 6), st.integers(0, 10_000))
@settings(max_examples=200, deadline=None)
def test_nnls_meets_the_optimality_conditions(num_columns, seed):
    """Karush-Kuhn-Tucker: no gradient where a coefficient is positive, no descent where it is
    zero."""
    rng = np.random.default_rng(seed)
    design, values = rng.standard_normal((12, num_columns)), rng.standard_normal(12)
    solution = solve_nnls(design, values)
    descent = design.T @ (values - design @ solution)
    assert (solution >= 0).all()
    assert np.abs(descent[solution > 0]).max(initial=0.0) < 1e-8
    assert descent[solution == 0].max(initial=0.0) < 1e-8


def test_fit_follows_a_bend_and_attention():
    samples = measured_samples()
    curve = CostCurve.fit(samples)
    assert np.abs(curve.relative_errors(samples)).max() < 0.01
    memory_bound = np.diff(curve.seconds(np.array([2, 4]), 0.0, 1.0))[0] / 2
    compute_bound = np.diff(curve.seconds(np.array([32, 128]), 0.0, 1.0))[0] / 96
    assert memory_bound == pytest.approx(0.0005, rel=0.2)
    assert compute_bound == pytest.approx(0.002, rel=0.05)


def test_fit_of_noisy_samples_is_monotone_and_close():
    curve = CostCurve.fit(measured_samples(noise=0.05))
    assert np.median(np.abs(curve.relative_errors(measured_samples()))) < 0.03
    assert (np.diff(curve.seconds(np.arange(1, 600), 2000.0, 8.0)) >= 0).all()


def test_slope_goes_on_beyond_the_profile():
    """Unmeasured sizes must not look free."""
    curve = CostCurve.fit(
        [ProfileSample(fed, 0, 1, 0.03 + 0.001 * fed) for fed in (1, 2, 4, 8, 16, 20)]
    )
    assert curve.seconds(400.0) == pytest.approx(0.43, rel=0.02)
    assert curve.seconds(12.0) == pytest.approx(0.042, rel=0.01)


def test_fit_of_a_single_sample():
    curve = CostCurve.fit([ProfileSample(4, 100, 1, 0.05)])
    assert curve.seconds(4, 100, 1) == pytest.approx(0.05)


def test_what_one_batch_size_cannot_tell_counts_as_constant():
    """Weights are read for one row, too."""
    curve = CostCurve.fit(
        [ProfileSample(fed, 3200, 32, 0.007 + 2e-5 * fed) for fed in (32, 64, 96, 128, 160, 192)]
    )
    assert curve.seconds(1.0, 100.0, 1.0) == pytest.approx(0.0076, rel=0.05)
    assert curve.seconds(192.0, 3200.0, 32.0) == pytest.approx(0.0108, rel=0.01)


def test_seconds_of_other_things_are_told_apart():
    passes = np.array(
        [[depth, depth * rows] for rows in (8, 32) for depth in (0, 1, 2) for _ in range(2)],
        dtype=float,
    )
    fed = [rows * (1 + k) for rows in (8, 32) for _ in range(3) for k in (0, 2)]
    rows = passes.shape[0] // 2 * [8] + passes.shape[0] // 2 * [32]
    seconds = 0.02 + 1e-4 * np.array(fed) + passes @ [0.002, 1e-5]
    samples = [
        ProfileSample(f, 100 * r, r, float(s)) for f, r, s in zip(fed, rows, seconds, strict=True)
    ]
    curve, of_passes = CostCurve.fit_beside(samples, passes)
    assert of_passes @ [1.0, 20.0] == pytest.approx(0.0022, rel=0.05)
    assert curve.seconds(32.0, 3200.0, 32.0) == pytest.approx(0.0232, rel=0.02)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_fit_refuses_impossible_samples(seconds):
    with pytest.raises(ValueError, match="unusable"):
        CostCurve.fit([ProfileSample(1, 1, 1, seconds)])


def test_fit_refuses_an_empty_profile():
    with pytest.raises(ValueError, match="no samples"):
        CostCurve.fit([])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"slopes": [float("nan")]}, "slopes"),
        ({"slopes": "many"}, "slopes"),
        ({"slopes": []}, "knots"),
        ({"knots": [-1.0]}, "knots"),
        ({"constant": -0.1}, "constant"),
        ({"constant": None}, "constant"),
        ({"per_row": float("inf")}, "per_row"),
        ({"per_context_token": True}, "per_context_token"),
        ({"slopes": [0.0], "constant": 0.0}, "zero"),
    ],
)
def test_corrupt_cache_entries_are_named(change, named):
    data = CostCurve.linear(0.03, 0.001).to_dict() | change
    with pytest.raises(ValueError, match=named):
        CostCurve.from_dict(data)
