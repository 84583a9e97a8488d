"""What finished steps say about acceptance, one by one or several at once."""

import factories
import numpy as np
import pytest
from drafter_cases import LOOKUP, MODEL, free_test

from smartspec.control import Plan
from smartspec.control.acceptance.estimator import AcceptanceEstimator
from smartspec.control.acceptance.observations import Observations

K = 4
BY_LOOKUP, BY_MODEL = range(2)


def make_step(lengths, accepted, ids=None, drafter=BY_LOOKUP, **more):
    """Drafts of these lengths, all by one drafter."""
    lengths = np.asarray(lengths)
    view = factories.make_view(
        len(lengths) if ids is None else ids, found_lengths=K, lag=0, row_caps=K
    )
    return factories.make_outcome(
        view, Plan(lengths, np.full(len(lengths), drafter)), accepted=accepted, **more
    )


def counts_of(*steps, drafter=BY_LOOKUP):
    """How often each position was tested and accepted in each row: float [R, K] both."""
    tested, accepted = Observations.of(steps).tests(K)
    return tested[:, drafter].T.tolist(), accepted[:, drafter].T.tolist()


def random_steps(rng, num_steps, num_rows=6):
    """Steps in which three in four draft tokens are accepted; some requests end between two
    steps."""
    for step in range(num_steps):
        lengths = rng.integers(0, K + 1, num_rows)
        chains = factories.draw_chains(rng, 0.75, (num_rows, K))
        yield make_step(lengths, np.minimum(chains, lengths), ids=np.arange(num_rows) + step // 3)


def test_tested_positions_end_at_the_first_rejection():
    """Also if those after it are called tested; what a stop dropped was not tested."""
    step = make_step([3, 4, 2, 4, 4], [1, 4, 2, 1, 4], tested=np.array([2, 4, 2, 4, 2]))
    tested, accepted = counts_of(step)
    assert tested == [[1, 1, 0, 0], [1, 1, 1, 1], *[[1, 1, 0, 0]] * 3]
    assert accepted == [[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]]


def test_tests_count_for_the_drafter_that_drafted():
    step = make_step([4], [2], drafter=BY_MODEL)
    assert not np.any(counts_of(step, drafter=BY_LOOKUP))
    assert counts_of(step, drafter=BY_MODEL)[0] == [[1, 1, 1, 0]]


def test_confidence_and_free_tests_may_be_missing_in_some_steps():
    confidence = np.full((2, K), 0.7)
    steps = (
        make_step([2, 2], [1, 2], confidence=confidence, free_tests=(free_test(2, [-1, 1]),)),
        make_step([1], [0]),
    )
    joined = Observations.of(steps)
    assert (
        joined.confidence[:2].tolist() == confidence.tolist()
        and np.isnan(joined.confidence[2]).all()
    )
    tested, accepted = joined.tests(K)
    joined.add_free_tests(tested, accepted)
    assert tested[:, BY_LOOKUP].T.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]
    assert accepted[:, BY_LOOKUP].T.tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert Observations.of(steps[1:]).confidence is None


def test_the_first_cut_token_is_the_one_after_a_draft_that_was_accepted_as_far_as_it_was_verified():
    free = (free_test(1, [-1, -1, -1, 1]),)
    step = make_step([1, 1, 4, 1], [1, 0, 4, 1], drafted=np.array([3, 3, 4, 3]), free_tests=free)
    cut = Observations.of([step]).first_cut(K).T.tolist()
    assert cut == [[False, True, False, False], [False] * 4, [False] * 4, [False] * 4]


def test_the_order_of_the_steps_of_a_group_does_not_count():
    steps = list(random_steps(np.random.default_rng(2), 4))
    view, survival = steps[-1].view, []
    for group in (steps, steps[::-1]):
        estimator = AcceptanceEstimator(K, (LOOKUP, MODEL))
        estimator.observe(group)
        survival.append(estimator.survival(view))
    assert survival[0] == pytest.approx(survival[1])


def test_groups_of_steps_teach_what_the_steps_would_have_one_by_one(monkeypatch):
    """But for the second-order difference that a Newton step from an older estimate makes."""
    steps = list(random_steps(np.random.default_rng(3), 120))
    # many steps together show a change that one does not
    monkeypatch.setattr("smartspec.control.acceptance.table.CHANGE_DEVIATIONS", 100.0)
    one_by_one, in_groups = (AcceptanceEstimator(K, (LOOKUP, MODEL)) for _ in range(2))
    for step in steps:
        one_by_one.observe([step])
    for begin in range(0, len(steps), 4):
        in_groups.observe(steps[begin : begin + 4])
    view = steps[-1].view
    assert in_groups.survival(view)[BY_LOOKUP] == pytest.approx(
        one_by_one.survival(view)[BY_LOOKUP], abs=0.02
    )
    tables = [
        estimator.table()["lookup, match 4-5"]["observations"]
        for estimator in (one_by_one, in_groups)
    ]
    assert tables[1] == pytest.approx(tables[0], rel=0.03)
