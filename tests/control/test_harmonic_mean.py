"""With a draft model requests that draft badly count as much by the time they wait."""

import numpy as np
import pytest
from drafter_cases import estimates_of
from factories import make_view

from smartspec.control.goodput.policy import Goodput
from smartspec.control.goodput.prices import best_choice
from smartspec.control.goodput.settings import GoodputSettings
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel

ROWS, K = 16, 6
LATENCY = LatencyModel(CostCurve.linear(0.02, 0.0005), (None, CostCurve.linear(0.0005, 0.0)))
SURVIVAL = np.cumprod(np.tile(np.repeat([0.9, 0.5], ROWS // 2)[:, None], K), axis=1)
OF_MODEL, OF_LOOKUP = estimates_of(LATENCY, SURVIVAL, SURVIVAL), estimates_of(LATENCY, SURVIVAL)
SETTINGS = GoodputSettings()


def nothing_found(found_lengths=0):
    return make_view(ROWS, found_lengths=found_lengths, lag=0, max_draft_tokens=K)


@pytest.mark.parametrize(("estimates", "fairness"), [(OF_MODEL, SETTINGS.fairness), (OF_LOOKUP, 0.0)])
def test_the_mean_is_harmonic_with_a_draft_model_and_arithmetic_where_drafts_come_now_and_then(estimates, fairness):
    view = nothing_found() if estimates is OF_MODEL else make_view(ROWS, found_lengths=K, max_draft_tokens=K)
    assert SETTINGS.fairness == 2.0
    assert best_choice(view, estimates, SETTINGS).fairness == fairness


def test_one_model_free_draft_does_not_change_whose_tokens_count():
    """A match of prompt lookup in one row: the draft model drafts as long for the others."""
    one_found = (np.arange(ROWS) == 0).astype(int)
    none, one = (Goodput().plan(nothing_found(found), OF_MODEL).lengths for found in (0, one_found))
    assert none[1:].any() and np.array_equal(none[1:], one[1:])


def test_requests_that_draft_badly_get_more_than_by_the_arithmetic_mean():
    arithmetic, harmonic = (
        Goodput(fairness=fairness).plan(nothing_found(), OF_MODEL).lengths.reshape(2, -1).sum(axis=1)
        for fairness in (0.0, None)
    )
    assert harmonic[1] > arithmetic[1] and harmonic[0] <= arithmetic[0]
