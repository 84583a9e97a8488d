"""Simulated trees: grown as the engine grows them, right as often as the ground truth says, paid
for pass by pass."""

import numpy as np
import pytest

from smartspec.control.expected_tree import child_chances
from smartspec.engine.drafting.trees.expansion import TreeExpansion
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import simulate_static
from smartspec.sim.static_load import Phase
from smartspec.sim.world.trees import (
    NO_RANK,
    chances_of_ranks,
    grow_trees,
    right_path,
    right_ranks,
    tree_survival,
)

DEPTH, WIDTH = 5, 3


def as_in_the_engine(chances, num_nodes, num_passes, stop=None):
    """One row, by the code that grows the trees of real heads; what each pass is fed, and what a
    stop rule is told."""
    growing, fed, num_fed, told = TreeExpansion(WIDTH, num_nodes), [-1], [], []
    for depth in range(num_passes):
        num_fed.append(len(fed))
        children = [list(range(WIDTH))] * len(fed), [chances[depth].tolist()] * len(fed)
        told.append(growing.add(fed, *children))
        if (stop is not None and stop(depth, told[-1])) or not (fed := growing.frontier()):
            break
        growing.feed(fed, 100)
    return growing.draft(), num_fed, told


@pytest.mark.parametrize("threshold", [None, 0.9])
def test_trees_are_those_of_the_engine(threshold):
    rng = np.random.default_rng(0)
    chances = child_chances(rng.uniform(0.2, 0.95, (40, DEPTH)), chances_of_ranks(0.3, WIDTH))
    nodes, passes = rng.integers(0, 25, 40), rng.integers(1, DEPTH + 1, 40)
    told = [[] for _ in nodes]

    def stop(depth, rows, confidence, entropy):
        for row, value in zip(rows.tolist(), confidence.tolist(), strict=True):
            told[row].append(value)
        return confidence < threshold

    rule = None if threshold is None else stop
    drafts, fed = grow_trees(chances, nodes, passes, rule, np.zeros((40, DEPTH)))
    for row, draft in enumerate(drafts):
        if not nodes[row]:
            assert not len(draft) and not fed[row].any()
            continue
        theirs, num_fed, confidence = as_in_the_engine(
            chances[row],
            int(nodes[row]),
            int(passes[row]),
            rule and (lambda _, value: value < threshold),
        )
        assert draft.token_ids.tolist() == theirs.token_ids.tolist()
        assert draft.parents.tolist() == theirs.parents.tolist()
        assert draft.confidence == pytest.approx(theirs.confidence)
        assert [n for n in fed[row].tolist() if n] == num_fed
        assert rule is None or told[row] == pytest.approx(confidence)


def test_nodes_are_right_as_often_as_their_chances_say():
    rng = np.random.default_rng(1)
    rank_chances, top_chances = chances_of_ranks(0.3, WIDTH), np.array([0.6, 0.5, 0.7, 0.4, 0.5])
    chances = child_chances(top_chances, rank_chances)
    (draft,), _ = grow_trees(chances[None], np.array([12]), np.array([DEPTH]))
    rounds = 20_000
    ranks = right_ranks(
        rng.random((rounds, DEPTH)), np.tile(top_chances, (rounds, 1)), rank_chances
    )
    hits = np.zeros(len(draft))
    for of_round in ranks:
        hits[list(right_path(draft, of_round))] += 1
    assert set(np.unique(ranks)) == {NO_RANK, 0, 1, 2}
    assert hits / rounds == pytest.approx(tree_survival(draft, chances), abs=4 * 0.5 / rounds**0.5)


def head(policy, **settings):
    return Scenario(
        policy=policy,
        drafter="head",
        acceptance="eagle3",
        max_draft_tokens=16,
        **{"batch": 4} | settings,
    )


@pytest.mark.parametrize("policy", ["eagle2:16", "ddd", "sequoia", "goodput", "fixed:4"])
def test_drawn_tokens_follow_expectation(policy):
    log = simulate_static(head(policy), [Phase(120, 16)])
    assert log.verified.any()
    assert log.emitted.sum() == pytest.approx(log.expected_emitted.sum(), rel=0.05)
    assert log.seconds.sum() == pytest.approx(log.expected_seconds.sum(), rel=0.03)


def test_a_tree_of_which_many_tokens_were_accepted_is_followed_by_another():
    """Their KV is missing in the draft model. It is no draft prefill that would have to wait for a
    plan in full: two steps of three had no drafts, and one request made 0.7 times the tokens of
    chains."""
    scenario = Scenario(
        policy="goodput",
        drafter="head",
        batch=1,
        acceptance="eagle3",
        max_draft_tokens=60,
        later_child_share=0.2,
    )
    log = simulate_static(scenario, [Phase(400, 1, context_tokens=1024, output_tokens=200)])
    assert (log.verified[50:] > 0).mean() > 0.95
