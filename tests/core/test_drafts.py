"""Drafts are trees in node order: every prefix is a connected subtree, and the best one of its
size."""

import numpy as np

from smartspec.core.batch import NO_DRAFT, Draft, chain, shorten


def test_the_first_nodes_of_a_tree_keep_what_is_known_of_them():
    tokens, parents = np.arange(10, 15, dtype=np.int32), np.array([-1, 0, -1, 2, 0], dtype=np.int32)
    draft = Draft(tokens, parents, match_length=3, confidence=np.linspace(0.9, 0.1, 5))
    assert draft.depths.tolist() == [1, 2, 1, 2, 2]
    for length in range(7):
        cut = shorten(draft, length)
        assert len(cut) == min(length, 5) and cut.match_length == 3
        for name in ("token_ids", "parents", "confidence"):
            assert getattr(cut, name).tolist() == getattr(draft, name)[:length].tolist()


def test_a_chain_is_a_tree_in_which_each_node_follows_the_one_before():
    draft = chain(np.array([5, 6, 7], dtype=np.int32), match_length=2)
    assert (
        draft.parents.tolist() == [-1, 0, 1] and draft.is_chain and draft.parents.dtype == np.int32
    )
    assert shorten(draft, 2).is_chain and shorten(draft, 2).match_length == 2 and NO_DRAFT.is_chain
    assert chain(np.zeros(1000, dtype=np.int32)).parents.tolist() == list(range(-1, 999))
    assert not Draft(np.array([5, 6], dtype=np.int32), np.array([-1, -1], dtype=np.int32)).is_chain
    assert Draft(np.array([5, 6], dtype=np.int32), np.array([-1, 0], dtype=np.int32)).is_chain
    assert not Draft(draft.token_ids[1:], draft.parents[1:]).is_chain
