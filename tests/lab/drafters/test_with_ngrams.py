"""Trees of a head and of n-grams in one: by path probability, whichever drafter proposed a node."""

import numpy as np
import pytest
from random_trees import random_parents

from lab.drafters.with_ngrams import merged
from smartspec.core.batch import NO_DRAFT, Draft, chain


def tree(token_ids: list[int], parents: list[int], confidence: list[float]) -> Draft:
    return Draft(
        np.array(token_ids, np.int32), np.array(parents, np.int32), confidence=np.array(confidence)
    )


HEAD = tree([1, 2, 3], [-1, 0, -1], [0.6, 0.5, 0.2])
NGRAMS = tree([1, 2, 4, 5], [-1, 0, 1, 2], [0.4, 0.9, 0.9, 0.9])


def test_a_node_of_both_is_as_likely_as_the_surer_one_says():
    both = merged(HEAD, NGRAMS, 10)
    assert both.token_ids.tolist() == [1, 2, 4, 5, 3]  # paths 0.6, 0.54, 0.486, 0.437, 0.2
    assert both.parents.tolist() == [-1, 0, 1, 2, -1]
    assert both.confidence.tolist() == [0.6, 0.9, 0.9, 0.9, 0.2]


@pytest.mark.parametrize("num_nodes", [0, 1, 3, 5])
def test_the_first_nodes_are_the_best_tree_of_their_number(num_nodes):
    some, everything = merged(HEAD, NGRAMS, num_nodes), merged(HEAD, NGRAMS, 10)
    assert some.paths == everything.paths[: num_nodes + 1]


def test_one_alone_stays_what_it_is():
    for draft in (HEAD, NGRAMS):
        for both in (merged(draft, NO_DRAFT, 9), merged(NO_DRAFT, draft, 9)):
            assert sorted(both.paths) == sorted(draft.paths)
    assert merged(NO_DRAFT, NO_DRAFT, 9) is NO_DRAFT
    forced = chain(np.array([7], np.int32))  # by a grammar: how likely is not known
    assert merged(HEAD, forced, 9).paths == HEAD.paths


def random_draft(random: np.random.Generator) -> Draft:
    """Of few tokens, so that two of them share paths; some are sure, some hopeless."""
    parents = random_parents(random, int(random.integers(0, 12)))
    chances = random.choice([0.0, 0.3, 1.0], len(parents))
    return Draft(random.integers(0, 3, len(parents), dtype=np.int32), parents, confidence=chances)


def test_parents_stand_before_their_children_whatever_the_chances():
    random = np.random.default_rng(0)
    for _ in range(200):
        both = merged(*(random_draft(random) for _ in range(2)), int(random.integers(1, 20)))
        assert (both.parents < np.arange(len(both))).all()
        worth = np.ones(len(both) + 1)
        for node, parent in enumerate(both.parents.tolist()):
            worth[node] = both.confidence[node] * (worth[parent] if parent >= 0 else 1.0)
        assert (np.diff(worth[:-1]) <= 0).all()
