import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartspec.drafters.prompt_lookup import PromptLookupDrafter


def naive_lookup(text: list[int], num_draft: int, min_match: int, max_match: int) -> tuple[list[int], int]:
    """Longest match first, most recent first; past the end of the text the draft reads what it has written."""
    for num_matched in range(max_match, min_match - 1, -1):
        for source in range(len(text) - 1, num_matched - 1, -1):
            if text[source - num_matched : source] == text[len(text) - num_matched :]:
                extended = list(text)
                for step in range(num_draft):
                    extended.append(extended[source + step])
                return extended[len(text) :], num_matched
    return [], 0


def propose(text: list[int], **options) -> tuple[list[int], int]:
    draft = PromptLookupDrafter(**{"max_draft_tokens": 4, **options}).propose(np.array(text, dtype=np.int32))
    assert draft.token_ids.dtype == np.int32 and draft.probs is None
    return draft.token_ids.tolist(), draft.match_length


@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    num_draft=st.integers(1, 9),
    min_match=st.integers(1, 4),
    more=st.integers(0, 6),
)
def test_agrees_with_the_naive_search(text, num_draft, min_match, more):
    expected = naive_lookup(text, num_draft, min_match, min_match + more)
    assert propose(text, max_draft_tokens=num_draft, min_match=min_match, max_match=min_match + more) == expected


def test_the_longest_match_wins_over_a_more_recent_one():
    assert propose([1, 2, 3, 9, 9, 9, 9, 8, 3, 7, 1, 2, 3]) == ([9, 9, 9, 9], 3)


def test_among_equally_long_matches_the_most_recent_wins():
    assert propose([5, 1, 1, 1, 1, 5, 2, 2, 2, 2, 5]) == ([2, 2, 2, 2], 1)


def test_a_loop_is_unrolled_past_the_end_of_the_text():
    assert propose([7, 1, 2, 3, 1, 2, 3], max_draft_tokens=8) == ([1, 2, 3, 1, 2, 3, 1, 2], 3)
    assert propose([4, 4], max_draft_tokens=3) == ([4, 4, 4], 1)


def test_match_length_is_capped_at_the_longest_match_looked_up():
    assert propose([1, 2, 3, 4, 5, 1, 2, 3, 4, 5], max_match=3)[1] == 3


def test_nothing_is_proposed_without_a_match_of_the_least_length():
    assert propose([1]) == ([], 0)
    assert propose([1, 2, 3]) == ([], 0)
    assert propose([1, 2, 9, 2], min_match=2) == ([], 0)


@pytest.mark.parametrize("options", [{"max_draft_tokens": 0}, {"min_match": 0}, {"min_match": 3, "max_match": 2}])
def test_impossible_lengths_are_refused(options):
    with pytest.raises(ValueError, match="got"):
        propose([1, 1], **options)
