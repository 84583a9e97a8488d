import numpy as np
import pytest

from smartspec.engine.sampling.randomness import ACCEPT, DRAFT, SAMPLE, fold_seed, uniform

NUM = 1 << 20


def chi_square_sigmas(bins: np.ndarray, num_bins: int) -> float:
    """Deviation of the chi-square statistic from its mean, in standard deviations; bins: int
    [n]."""
    counts = np.bincount(bins, minlength=num_bins)
    expected = len(bins) / num_bins
    statistic = ((counts - expected) ** 2 / expected).sum()
    return (statistic - (num_bins - 1)) / np.sqrt(2 * (num_bins - 1))


def pair_bins(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first * 32).astype(int) * 32 + (second * 32).astype(int)


@pytest.mark.parametrize("purpose", [DRAFT, ACCEPT, SAMPLE])
def test_values_are_uniform_along_positions_and_along_seeds(purpose):
    counter = np.arange(NUM)
    for seeds, positions in ((np.full(NUM, 7), counter), (counter, np.full(NUM, 7))):
        values = uniform(seeds, positions, purpose)
        assert values.dtype == np.float64 and values.min() >= 0 and values.max() < 1
        assert abs(chi_square_sigmas((values * 1024).astype(int), 1024)) < 4


def test_purposes_positions_and_seeds_are_pairwise_independent():
    counter = np.arange(NUM)
    seeds = np.full(NUM, 123)
    here = uniform(seeds, counter, SAMPLE)
    others = [
        uniform(seeds, counter, ACCEPT),
        uniform(seeds, counter, DRAFT),
        uniform(seeds, counter + 1, SAMPLE),
        uniform(seeds + 1, counter, SAMPLE),
        uniform(counter, seeds, SAMPLE),
    ]
    for other in others:
        assert abs(chi_square_sigmas(pair_bins(here, other), 1024)) < 4
    assert chi_square_sigmas(pair_bins(here, here), 1024) > 1000


def test_a_value_depends_on_nothing_but_its_key():
    seeds, positions = np.arange(-50, 50), np.arange(100) * 3
    together = uniform(seeds, positions, SAMPLE)
    alone = [uniform(seeds[i : i + 1], positions[i : i + 1], SAMPLE)[0] for i in range(100)]
    assert together.tolist() == alone


def test_values_stay_the_same_across_versions():
    values = uniform(np.array([0, 0, 1, -1]), np.array([0, 1, 0, 2**40]), SAMPLE)
    pinned = [0.32116735005664443, 0.03890182570874523, 0.8567437841541052, 0.29355435655818407]
    assert values.tolist() == pinned


def test_any_integer_folds_into_int64():
    assert [fold_seed(seed) for seed in (0, -1, 2**63 - 1, -(2**63))] == [
        0,
        -1,
        2**63 - 1,
        -(2**63),
    ]
    assert fold_seed(2**64 + 5) == 5
    assert fold_seed(2**63) == -(2**63)
