"""Trees of n-grams: node order, counted chances, and what holds for all drafters that read
texts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_answer_memory import (
    test_a_repeated_prompt_is_drafted_from_its_first_token,
    test_answers_of_one_salt_are_not_in_drafts_of_another,
)
from test_model_free import FORCED, Literal, drafted
from test_recycling import (
    test_many_salts_at_once_do_not_make_tables_in_every_step,
    test_salts_of_one_key_displace_nothing_of_another,
)

from lab.drafters.ngram_tree import CountedDraft, NgramTree
from smartspec.core.batch import NO_DRAFT
from smartspec.drafters.datastore import Datastore
from smartspec.drafters.datastore_build import NgramCounts, write_datastore
from smartspec.drafters.drafter_names import reads_texts
from smartspec.engine.runtime.config import EngineConfig

__all__ = [
    "test_a_repeated_prompt_is_drafted_from_its_first_token",
    "test_answers_of_one_salt_are_not_in_drafts_of_another",
    "test_many_salts_at_once_do_not_make_tables_in_every_step",
    "test_salts_of_one_key_displace_nothing_of_another",
]
NAME = "lab.drafters.ngram_tree:NgramTree"
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def as_text(token_ids) -> np.ndarray:
    return np.array(token_ids, dtype=np.int32)


@pytest.fixture
def drafter() -> type:
    return NgramTree


@pytest.fixture
def kind() -> type:
    return NgramTree


def path_probabilities(draft) -> list[float]:
    probabilities = []
    for parent, chance in zip(draft.parents.tolist(), draft.confidence.tolist(), strict=True):
        probabilities.append(chance * (probabilities[parent] if parent >= 0 else 1.0))
    return probabilities


@given(learned=tokens, text=tokens, num_nodes=st.integers(1, 20))
def test_a_tree_stands_in_node_order_with_distinct_children(learned, text, num_nodes):
    drafter = NgramTree(max_draft_tokens=num_nodes)
    drafter.learn(as_text(learned[:1]), tuple(learned[1:]))
    draft = drafter.propose(as_text(text))
    assert len(draft) <= num_nodes
    if draft is NO_DRAFT:
        return
    assert (
        draft.parents < np.arange(len(draft))
    ).all() and draft.token_ids.dtype == draft.parents.dtype == np.int32
    edges = list(zip(draft.parents.tolist(), draft.token_ids.tolist(), strict=True))
    assert len(set(edges)) == len(edges)
    assert (np.diff(path_probabilities(draft)) <= 1e-12).all()
    for node in range(-1, len(draft)):
        assert draft.confidence[draft.parents == node].sum() <= 1.0 + 1e-9


def test_the_text_and_the_table_make_one_tree():
    """After 5 6 the text went on with 7 and, before that, with 9; other requests with 8."""
    drafter = NgramTree(max_draft_tokens=40)
    drafter.learn(as_text([5, 6]), (8, 4))
    draft = drafter.propose(as_text([5, 6, 9, 1, 5, 6, 7, 2, 5, 6]))
    children = draft.token_ids[draft.parents == -1].tolist()
    assert children == [7, 9, 8]
    assert draft.match_length == 2
    below_8 = draft.token_ids[draft.parents == draft.token_ids.tolist().index(8)]
    assert below_8.tolist()[0] == 4


def test_a_period_goes_on():
    draft = NgramTree(max_draft_tokens=6).propose(as_text([9, 1, 2, 1, 2]))
    assert draft.is_chain and draft.token_ids.tolist() == [1, 2, 1, 2, 1, 2]


def test_nothing_is_proposed_after_new_tokens():
    drafter = NgramTree(max_draft_tokens=6)
    assert drafter.propose(as_text([1, 2, 3])) is NO_DRAFT
    assert drafter.propose(as_text([1])) is NO_DRAFT


def test_probabilities_are_counted():
    """The second child is right every time, so it becomes the first."""
    drafter = NgramTree(max_draft_tokens=4)
    text = as_text([5, 6, 9, 1, 5, 6, 7, 2, 5, 6])
    first = drafter.propose(text)
    assert isinstance(first, CountedDraft) and first.token_ids[0] == 7
    chance = first.confidence[0]
    for _ in range(40):
        drafter.count(drafter.propose(text), (9,))
    again = drafter.propose(text)
    assert again.confidence[again.token_ids.tolist().index(7)] < 0.5 * chance


def test_salts_share_neither_texts_nor_counts():
    drafter = NgramTree(max_draft_tokens=4)
    drafter.of_salt("a").learn(as_text([1, 2]), (3,))
    assert drafter.of_salt("a").propose(as_text([1, 2])).token_ids.tolist() == [3]
    assert (
        drafter.propose(as_text([1, 2])) is NO_DRAFT
        and drafter.of_salt("b").propose(as_text([1, 2])) is NO_DRAFT
    )


@pytest.mark.parametrize(
    "options", [{"max_draft_tokens": 0}, {"max_draft_tokens": 4, "num_entries": 0}]
)
def test_bad_options_are_named(options):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        NgramTree(**options)


def test_larger_trees_than_can_be_verified_are_refused():
    assert NgramTree(max_draft_tokens=63).max_draft_tokens == 63
    with pytest.raises(ValueError, match="max_draft_tokens is 64: a draft tree has at most 63"):
        NgramTree(max_draft_tokens=64)


def test_a_tree_takes_the_stores_tokens_in_and_counts_how_good_they_are(tmp_path):
    counts = NgramCounts()
    for text in ([1, 2, 3] * 4, [1, 2, 9] * 3):
        counts.add(as_text(text))
    write_datastore(tmp_path / "store", counts, model="tiny", tokenizer="digest", vocab_size=100)
    store = Datastore(tmp_path / "store")
    drafter = NgramTree(max_draft_tokens=20, datastore=store)
    drafter.learn(as_text([1, 2]), (8,))
    children = lambda draft: draft.token_ids[draft.parents == -1].tolist()  # noqa: E731
    assert {*children(drafter.propose(as_text([7, 1, 2])))} == {3, 9, 8}
    assert {*children(drafter.of_salt("a").propose(as_text([7, 1, 2])))} == {3, 9}, (
        "the store is everybody's"
    )
    chance = lambda draft: draft.confidence[draft.token_ids.tolist().index(3)]  # noqa: E731
    before = chance(drafter.propose(as_text([7, 1, 2])))
    for _ in range(40):
        drafter.count(drafter.propose(as_text([7, 1, 2])), (9,))
    assert chance(drafter.propose(as_text([7, 1, 2]))) < 0.7 * before


def test_what_a_grammar_forces_is_drafted():
    assert drafted(Literal([7, 8, 9, 7]), NgramTree(max_draft_tokens=3)) == ([7, 8, 9], FORCED)
    assert FORCED in NgramTree.spec.match_lengths


def test_its_earlier_name_is_refused_with_the_new_one():
    with pytest.raises(
        ValueError, match=f"drafter 'ngram-tree' is called {NAME} and is in the repository's lab"
    ):
        EngineConfig(drafters=("ngram-tree",))
    assert reads_texts(NAME) and EngineConfig(
        drafters=(NAME,), datastore_memory="folder"
    ).drafters == (NAME,)
