"""With a draft model a token counts more for a request that drafts badly: each of its tokens takes
longer."""

import numpy as np
import pytest
from drafter_cases import estimates_of
from factories import make_view

from smartspec.control import CostCurve, LatencyModel
from smartspec.control.goodput.policy import Goodput, GoodputSettings
from smartspec.control.planning import fair_weights

ROWS, K = 16, 6
LATENCY = LatencyModel(CostCurve.linear(0.02, 0.0005), (None, CostCurve.linear(0.0005, 0.0)))
SURVIVAL = np.cumprod(np.tile(np.repeat([0.9, 0.5], ROWS // 2)[:, None], K), axis=1)
OF_MODEL, OF_LOOKUP = estimates_of(LATENCY, SURVIVAL, SURVIVAL), estimates_of(LATENCY, SURVIVAL)


def nothing_found(found_lengths=0, **columns):
    return make_view(ROWS, found_lengths=found_lengths, lag=0, row_caps=K, **columns)


@pytest.mark.parametrize("fairness", [0.0, 0.5, 1.0])
def test_a_weight_falls_with_the_tokens_of_a_step_and_the_sum_stays(fairness):
    own = np.arange(1.0, ROWS + 1)
    weights = fair_weights(nothing_found(weights=own), OF_MODEL, fairness).weights
    emitted = 1.0 + SURVIVAL.sum(axis=1)
    assert weights.sum() == pytest.approx(own.sum())
    assert weights / own * emitted**fairness == pytest.approx(weights[0] * emitted[0] ** fairness)


@pytest.mark.parametrize("own", [0.0, 1e-12])
def test_weights_of_nothing_or_next_to_nothing_are_finite(own):
    weights = fair_weights(nothing_found(weights=np.full(ROWS, own)), OF_MODEL, 0.5).weights
    assert weights.sum() == pytest.approx(ROWS * own) and (weights >= 0.0).all()


def test_without_a_draft_model_tokens_count_alike():
    """A request without a found draft in this step is not a slow one."""
    view = make_view(ROWS, found_lengths=K, row_caps=K)
    assert fair_weights(view, OF_LOOKUP, 0.5) is view


def test_one_model_free_draft_does_not_change_whose_tokens_count():
    """A match of prompt lookup in one row: the draft model drafts as long for the others."""
    one_found = (np.arange(ROWS) == 0).astype(int)
    none, one = (Goodput().plan(nothing_found(found), OF_MODEL).lengths for found in (0, one_found))
    assert none[1:].any() and np.array_equal(none[1:], one[1:])


def test_requests_that_draft_badly_get_more_than_where_tokens_count_alike():
    alike, fair = (
        Goodput(settings=GoodputSettings(fairness=fairness))
        .plan(nothing_found(), OF_MODEL)
        .lengths.reshape(2, -1)
        for fairness in (0.0, 1.0)
    )
    assert fair[1].sum() > alike[1].sum() and fair[0].sum() <= alike[0].sum()
