"""Survival of tree nodes: what a drafter believes of each, calibrated, times that of its
ancestors."""

import factories
import numpy as np
import pytest

from smartspec.control import BatchView, DecisionRecord, DrafterSpec, DrafterView, Outcome, Plan
from smartspec.control.acceptance.estimator import AcceptanceEstimator

K = 5
# Two children of the text, two of the first of them, one of the second of these.
PARENTS = np.array([[-1, -1, 0, 0, 3]])
CHANCES = np.array([[0.5, 0.3, 0.5, 0.2, 0.4]])


def view_of(num_rows: int, confidence: np.ndarray, parents=PARENTS) -> BatchView:
    drafter = DrafterView(
        np.full(num_rows, K),
        confidence=np.broadcast_to(confidence, (num_rows, K)),
        parents=np.broadcast_to(parents, (num_rows, K)),
    )
    return factories.make_view(num_rows, drafters=(drafter,), row_caps=K)


def outcome(random: np.random.Generator, ground_truth: np.ndarray) -> tuple[np.ndarray, int, int]:
    """What is seen of one tree whose nodes are accepted with these chances if their parents are:
    node tests, tested depths, accepted depths."""
    tests, at, depth = np.full(K, -1), -1, 0
    while len(children := np.flatnonzero(PARENTS[0] == at)):
        tests[children] = 0
        u, total = random.random(), 0.0
        for child in children:
            total += ground_truth[child]
            if u < total:
                tests[child], at = 1, child
                break
        else:
            return tests, depth + 1, depth
        depth += 1
    return tests, depth, depth


def outcome_of(
    random: np.random.Generator, num_rows: int, ground_truth: np.ndarray, claimed: np.ndarray
) -> Outcome:
    view = view_of(num_rows, claimed)
    tests, tested, accepted = zip(
        *(outcome(random, ground_truth) for _ in range(num_rows)), strict=True
    )
    return factories.make_outcome(
        view,
        Plan(np.full(num_rows, K), np.zeros(num_rows, dtype=int)),
        accepted=accepted,
        tested=np.array(tested),
        confidence=np.broadcast_to(claimed, (num_rows, K)),
        parents=np.broadcast_to(PARENTS, (num_rows, K)),
        node_tests=np.array(tests),
    )


def true_survival(ground_truth: np.ndarray) -> np.ndarray:
    survival = []
    for parent, chance in zip(PARENTS[0], ground_truth, strict=True):
        survival.append(chance * (survival[parent] if parent >= 0 else 1.0))
    return np.minimum.accumulate(survival)


@pytest.mark.parametrize("bias", [1.0, 0.6])
def test_node_survival_is_learned_also_from_a_drafter_that_errs(bias):
    """A drafter that claims too little (bias below 1) is corrected, though children of one node
    exclude each other."""
    estimator, random = AcceptanceEstimator(K, (DrafterSpec("trees"),)), np.random.default_rng(0)
    ground_truth = CHANCES[0]
    for _ in range(150):
        estimator.observe([outcome_of(random, 8, ground_truth, bias * ground_truth)])
    survival = estimator.survival(view_of(3, bias * ground_truth))
    assert survival.shape == (1, 3, K) and (np.diff(survival, axis=2) <= 0).all()
    np.testing.assert_allclose(survival[0, 0], true_survival(ground_truth), atol=0.06)


def test_chains_with_and_without_parents_are_the_same():
    estimator = AcceptanceEstimator(K, (DrafterSpec("chains"),))
    chain = np.arange(-1, K - 1)[None]
    claimed = np.array([[0.9, 0.8, 0.7, 0.6, 0.5]])
    by_tree = estimator.survival(view_of(2, claimed, chain))
    estimator = AcceptanceEstimator(K, (DrafterSpec("chains"),))
    view = view_of(2, claimed, chain)
    by_chain = estimator.survival_given_confidence(
        view, np.zeros(2, dtype=int), np.repeat(claimed, 2, axis=0)
    )
    np.testing.assert_allclose(by_tree[0], by_chain)


def test_a_record_of_trees_survives_the_log():
    outcome = outcome_of(np.random.default_rng(1), 3, CHANCES[0], CHANCES[0])
    record = factories.make_record(outcome, survival=np.repeat(CHANCES, 3, axis=0))
    read = DecisionRecord.from_json(record.to_json()).outcome
    assert read.parents.tolist() == outcome.parents.tolist()
    assert read.node_tests.tolist() == outcome.node_tests.tolist()
