import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartspec.core.batch import NO_DRAFT
from smartspec.drafters.ngram_tree import CountedDraft, NgramTreeDrafter

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def as_text(token_ids) -> np.ndarray:
    return np.array(token_ids, dtype=np.int32)


def path_probabilities(draft) -> list[float]:
    probabilities = []
    for parent, chance in zip(draft.parents.tolist(), draft.confidence.tolist(), strict=True):
        probabilities.append(chance * (probabilities[parent] if parent >= 0 else 1.0))
    return probabilities


@given(learned=tokens, text=tokens, num_nodes=st.integers(1, 20))
def test_a_tree_stands_in_node_order_with_distinct_children(learned, text, num_nodes):
    drafter = NgramTreeDrafter(max_draft_tokens=num_nodes)
    drafter.learn(as_text(learned[:1]), tuple(learned[1:]))
    draft = drafter.propose(as_text(text))
    assert len(draft) <= num_nodes
    if draft is NO_DRAFT:
        return
    assert (draft.parents < np.arange(len(draft))).all() and draft.token_ids.dtype == draft.parents.dtype == np.int32
    edges = list(zip(draft.parents.tolist(), draft.token_ids.tolist(), strict=True))
    assert len(set(edges)) == len(edges)
    assert (np.diff(path_probabilities(draft)) <= 1e-12).all()
    for node in range(-1, len(draft)):
        assert draft.confidence[draft.parents == node].sum() <= 1.0 + 1e-9


def test_the_text_and_the_table_make_one_tree():
    """After 5 6 the text went on with 7 and, before that, with 9; other requests with 8."""
    drafter = NgramTreeDrafter(max_draft_tokens=40)
    drafter.learn(as_text([5, 6]), (8, 4))
    draft = drafter.propose(as_text([5, 6, 9, 1, 5, 6, 7, 2, 5, 6]))
    children = draft.token_ids[draft.parents == -1].tolist()
    assert children == [7, 9, 8]
    assert draft.match_length == 2
    below_8 = draft.token_ids[draft.parents == draft.token_ids.tolist().index(8)]
    assert below_8.tolist()[0] == 4


def test_a_period_goes_on():
    draft = NgramTreeDrafter(max_draft_tokens=6).propose(as_text([9, 1, 2, 1, 2]))
    assert draft.is_chain and draft.token_ids.tolist() == [1, 2, 1, 2, 1, 2]


def test_nothing_is_proposed_after_new_tokens():
    drafter = NgramTreeDrafter(max_draft_tokens=6)
    assert drafter.propose(as_text([1, 2, 3])) is NO_DRAFT
    assert drafter.propose(as_text([1])) is NO_DRAFT


def test_probabilities_are_counted():
    """The second child is right every time, so it becomes the first."""
    drafter = NgramTreeDrafter(max_draft_tokens=4)
    text = as_text([5, 6, 9, 1, 5, 6, 7, 2, 5, 6])
    first = drafter.propose(text)
    assert isinstance(first, CountedDraft) and first.token_ids[0] == 7
    chance = first.confidence[0]
    for _ in range(40):
        drafter.count(drafter.propose(text), (9,))
    again = drafter.propose(text)
    assert again.confidence[again.token_ids.tolist().index(7)] < 0.5 * chance


def test_salts_share_neither_texts_nor_counts():
    drafter = NgramTreeDrafter(max_draft_tokens=4)
    drafter.of_salt("a").learn(as_text([1, 2]), (3,))
    assert drafter.of_salt("a").propose(as_text([1, 2])).token_ids.tolist() == [3]
    assert drafter.propose(as_text([1, 2])) is NO_DRAFT and drafter.of_salt("b").propose(as_text([1, 2])) is NO_DRAFT


@pytest.mark.parametrize("options", [{"max_draft_tokens": 0}, {"max_draft_tokens": 4, "num_entries": 0}])
def test_bad_options_are_named(options):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        NgramTreeDrafter(**options)


def test_larger_trees_than_can_be_verified_are_refused():
    assert NgramTreeDrafter(max_draft_tokens=63).max_draft_tokens == 63
    with pytest.raises(ValueError, match="max_draft_tokens is 64: a draft tree has at most 63"):
        NgramTreeDrafter(max_draft_tokens=64)
