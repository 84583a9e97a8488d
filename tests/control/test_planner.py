from itertools import chain, combinations, product

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


def goodput(problem, lengths):
    """The objective, straight from its definition."""
    survival, weights = problem["survival"], problem["weights"]
    emitted = sum(w * (1 + s[:k].sum()) for w, s, k in zip(weights, survival, lengths, strict=True))
    return emitted / goodput_seconds(problem, lengths)


def goodput_seconds(problem, lengths):
    depth = max(
        (k for k, needs in zip(lengths, problem["needs_depth"], strict=True) if needs), default=0
    )
    return seconds_of(problem["times"], depth, sum(lengths))


def seconds_of(times, depth, num_tokens):
    return times.draft[depth] + times.target[num_tokens] + times.host


@given(problems())
@settings(max_examples=400, deadline=None)
def test_plan_is_the_best_of_all_length_combinations(problem):
    plan = plan_lengths(**problem)
    best = max(
        goodput(problem, lengths)
        for lengths in product(*(range(cap + 1) for cap in problem["caps"]))
    )
    assert (plan.lengths <= problem["caps"]).all()
    assert goodput(problem, plan.lengths) == pytest.approx(best, rel=1e-9)
    assert plan.goodput == pytest.approx(best, rel=1e-9)
    assert plan.off_goodput == pytest.approx(goodput(problem, [0] * len(plan.lengths)), rel=1e-9)


@given(problems(), st.floats(0.0, 50.0))
@settings(max_examples=300, deadline=None)
def test_with_a_price_of_time_the_plan_is_the_best_of_all_too(problem, value_of_time):
    def worth(lengths):
        seconds = goodput_seconds(problem, lengths)
        return goodput(problem, lengths) * seconds - value_of_time * seconds

    plan = plan_lengths(**problem, value_of_time=value_of_time)
    best = max(worth(lengths) for lengths in product(*(range(cap + 1) for cap in problem["caps"])))
    assert worth(plan.lengths) == pytest.approx(best, rel=1e-9, abs=1e-9)
    off = worth([0] * len(plan.lengths))
    assert plan.gain * problem["weights"].sum() == pytest.approx(best - off, abs=1e-6)


@given(problems(), st.data())
@settings(max_examples=200, deadline=None)
def test_the_plan_for_trees_is_the_best_of_all_sets_of_nodes(problem, data):
    """Nodes share the passes down to their depth, whichever these are."""
    survival, caps, weights = problem["survival"], problem["caps"], problem["weights"]
    depth = st.integers(0, survival.shape[1])
    passes = np.array([[data.draw(depth) for _ in row] for row in survival], dtype=int).reshape(
        survival.shape
    )
    plan = plan_lengths(**problem, passes=passes)
    slots = [(row, j) for row, cap in enumerate(caps.tolist()) for j in range(cap)]
    best = 0.0
    for chosen in chain.from_iterable(combinations(slots, n) for n in range(len(slots) + 1)):
        deepest = max((passes[slot] for slot in chosen), default=0)
        seconds = seconds_of(problem["times"], deepest, len(chosen))
        best = max(
            best,
            (weights.sum() + sum(weights[slot[0]] * survival[slot] for slot in chosen)) / seconds,
        )
    assert plan.goodput == pytest.approx(best, rel=1e-9)
    assert (plan.lengths <= caps).all() and (plan.passes <= plan.depth).all()
    assert ((plan.lengths > 0) | (plan.passes == 0)).all()


def simple_problem(survival, target_seconds, draft_seconds=None, needs_depth=False):
    num_rows, num_positions = np.shape(survival)
    return {
        "survival": np.array(survival, dtype=float),
        "caps": np.full(num_rows, num_positions),
        "weights": np.ones(num_rows),
        "needs_depth": np.full(num_rows, needs_depth),
        "times": StepTimes(
            draft=np.zeros(num_positions + 1) if draft_seconds is None else np.array(draft_seconds),
            target=np.array(target_seconds, dtype=float),
        ),
    }


def test_ties_go_to_fewer_tokens():
    plan = plan_lengths(**simple_problem([[0.5, 0.0]], [1.0, 1.5, 1.5]))
    assert plan.lengths.tolist() == [0]
    plan = plan_lengths(**simple_problem([[0.5, 0.0]], [1.0, 1.25, 1.25]))
    assert plan.lengths.tolist() == [1]


def test_equal_slots_stay_prefixes_of_each_draft():
    plan = plan_lengths(
        **simple_problem([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0])
    )
    assert plan.lengths.sum() == 3
    assert plan.goodput == pytest.approx(5.0)


def test_finds_the_second_peak_after_a_fixed_cost():
    """Row of arXiv 2406.14066's fitted 70B model where stopping at the first drop would return no
    drafts."""
    survival = np.cumprod(np.full((26, 5), 0.7), axis=1)
    extra = np.arange(26 * 5 + 1)
    seconds = 25.0 + 0.064 * extra + 3.0 * (extra > 0)
    problem = simple_problem(survival, seconds)
    first = (26 + 0.7) / seconds[1]
    plan = plan_lengths(**problem)
    assert first < plan.off_goodput < plan.goodput
    assert plan.lengths.min() >= 2


def test_model_free_drafts_need_no_depth_but_draft_models_pay_for_it():
    survival, target = [[0.9, 0.8]], [1.0, 1.0, 1.0]
    assert plan_lengths(
        **simple_problem(survival, target, [0.0, 2.0, 4.0], needs_depth=False)
    ).lengths.tolist() == [2]
    plan = plan_lengths(**simple_problem(survival, target, [0.0, 2.0, 4.0], needs_depth=True))
    assert (plan.lengths.tolist(), plan.depth, plan.seconds) == ([0], 0, 1.0)
    plan = plan_lengths(**simple_problem(survival, target, [0.0, 0.1, 4.0], needs_depth=True))
    assert (plan.lengths.tolist(), plan.depth, plan.seconds) == ([1], 1, 1.1)


def test_a_heavier_request_is_served_first():
    problem = simple_problem([[0.5], [0.6]], [1.0, 1.1, 9.0])
    assert plan_lengths(**problem).lengths.tolist() == [0, 1]
    assert plan_lengths(**problem | {"weights": np.array([2.0, 1.0])}).lengths.tolist() == [1, 0]


def test_batch_without_decoding_requests():
    plan = plan_lengths(**simple_problem(np.empty((0, 4)), [1.0]))
    assert plan.lengths.shape == (0,)
    assert plan.goodput == 0.0
