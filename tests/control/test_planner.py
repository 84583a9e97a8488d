"""What policies are measured against is really the best."""

from itertools import product

import numpy as np
import pytest
from best_lengths import StepTimes, plan_lengths
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def problems(draw):
    """Small planning problems with any monotone times: plateaus, staircases, kinks."""
    num_rows, num_positions = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    unit = st.floats(0.0, 1.0)

    def array(size, elements):
        return np.array(draw(st.lists(elements, min_size=size, max_size=size)))

    survival = np.cumprod(
        array(num_rows * num_positions, unit).reshape(num_rows, num_positions), axis=1
    )
    increments = st.sampled_from([0.0, 0.0, 0.01, 0.1, 1.0]) | unit
    return {
        "survival": survival,
        "caps": array(num_rows, st.integers(0, num_positions)),
        "weights": array(num_rows, st.sampled_from([0.5, 1.0, 1.0, 3.0])),
        "needs_depth": array(num_rows, st.booleans()),
        "times": StepTimes(
            draft=np.concatenate([[0.0], np.cumsum(array(num_positions, increments))]),
            target=0.05 + np.cumsum(array(num_rows * num_positions + 1, increments)),
            host=draw(st.sampled_from([0.0, 0.02])),
        ),
    }


def goodput(lengths, survival, caps, weights, needs_depth, times):
    """The objective, straight from its definition."""
    emitted = sum(w * (1 + s[:k].sum()) for w, s, k in zip(weights, survival, lengths, strict=True))
    depth = max((k for k, needs in zip(lengths, needs_depth, strict=True) if needs), default=0)
    return emitted / (times.draft[depth] + times.target[sum(lengths)] + times.host)


@given(problems())
@settings(max_examples=400, deadline=None)
def test_plan_is_the_best_of_all_length_combinations(problem):
    plan = plan_lengths(**problem)
    combinations = product(*(range(cap + 1) for cap in problem["caps"]))
    best = max(goodput(lengths, **problem) for lengths in combinations)
    assert (plan.lengths <= problem["caps"]).all()
    assert goodput(plan.lengths, **problem) == pytest.approx(best, rel=1e-9)
    assert plan.goodput == pytest.approx(best, rel=1e-9)
