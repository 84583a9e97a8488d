"""Drafts are trees in node order: every prefix is a connected subtree, and the best one of its
size."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from smartspec.core.batch import NO_DRAFT, Draft, chain, shorten

# For each node, which earlier node (or -1) it follows and how likely it is accepted after that.
trees = st.lists(
    st.tuples(st.integers(0, 100), st.sampled_from([1.0, 0.9, 0.5, 0.5, 0.25, 0.0])), max_size=6
)


def in_node_order(shape) -> tuple[Draft, np.ndarray]:
    """The tree with its nodes by falling survival, and their survival: float [n]."""
    parents, survival = [], []
    for j, (choice, acceptance) in enumerate(shape):
        parents.append(choice % (j + 1) - 1)
        survival.append(acceptance * (survival[parents[-1]] if parents[-1] >= 0 else 1.0))
    order = np.argsort(-np.array(survival), kind="stable")
    place = {int(node): j for j, node in enumerate(order)} | {-1: -1}
    new_parents = np.array([place[parents[node]] for node in order], dtype=np.int32)
    return Draft(
        order.astype(np.int32), new_parents, confidence=np.array(survival)[order]
    ), np.array(survival)[order]


def is_connected(nodes, parents) -> bool:
    return all(parents[node] in nodes or parents[node] == -1 for node in nodes)


@given(trees)
def test_any_prefix_of_nodes_is_a_connected_subtree(shape):
    draft, survival = in_node_order(shape)
    for length in range(len(draft) + 1):
        cut = shorten(draft, length)
        assert len(cut) == len(cut.parents) == len(cut.confidence) == length
        assert is_connected(range(length), cut.parents)
        assert (cut.parents < np.arange(length)).all()
        assert cut.token_ids.tolist() == draft.token_ids[:length].tolist()
    assert (np.diff(survival) <= 0).all()


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
