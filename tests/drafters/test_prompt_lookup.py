from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_arrays import as_text

from smartspec.drafters import prompt_lookup
from smartspec.drafters.prompt_lookup import MOST_BYTES, PromptLookupDrafter


def naive_lookup(text: list[int], num_draft: int, max_match: int = 8) -> tuple[list[int], int]:
    """Longest match first, most recent first; past the end of the text the draft reads what it has
    written."""
    for num_matched in range(max_match, 0, -1):
        for source in range(len(text) - 1, num_matched - 1, -1):
            if text[source - num_matched : source] == text[len(text) - num_matched :]:
                extended = list(text)
                for step in range(num_draft):
                    extended.append(extended[source + step])
                return extended[len(text) :], num_matched
    return [], 0


def propose(text: list[int], num_draft: int) -> tuple[list[int], int]:
    draft = PromptLookupDrafter(max_draft_tokens=num_draft).propose(as_text(text))
    assert draft.token_ids.dtype == np.int32 and draft.probs is None
    return draft.token_ids.tolist(), draft.match_length


@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    num_draft=st.integers(1, 9),
)
def test_agrees_with_the_naive_search(text, num_draft):
    assert propose(text, num_draft) == naive_lookup(text, num_draft)


@pytest.mark.parametrize("most_bytes", [1, 5, 60])
@given(
    text=st.lists(st.sampled_from([0, 1, 256, 257, 1 << 16]), min_size=1, max_size=60),
    max_match=st.integers(1, 9),
)
def test_agrees_with_it_where_bytes_match_between_tokens_and_a_match_is_far_away(
    most_bytes, text, max_match
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_lookup, "MOST_BYTES", most_bytes)
        patch.setattr(prompt_lookup, "MAX_MATCH", max_match)
        assert propose(text, 4) == naive_lookup(text, 4, max_match)


class CountedBytes(bytes):
    """Notes how many bytes each search may look at."""

    searched: ClassVar[list[int]] = []

    def rfind(self, part, *places):
        self.searched.append(places[1] if places else len(self))
        return super().rfind(part, *places)


class CountedText(np.ndarray):
    """Tokens, or truth values of them, that note what is searched and how often they are
    compared."""

    compared: ClassVar[list[int]] = []

    def tobytes(self):
        return CountedBytes(super().tobytes())

    def __eq__(self, other):
        self.compared.append(len(self))
        return super().__eq__(other)


LENGTH = 2 * MOST_BYTES
HOSTILE = {
    "bytes match between all tokens": [1] * LENGTH + [256],
    "zeros": [0] * LENGTH + [0],
    "seven tokens match everywhere, and the first byte of the eighth": [300] * LENGTH
    + [300 + 1024]
    + [300] * 7,
    "one token": [7] * LENGTH,
    "a period": [1, 256] * (LENGTH // 2) + [1],
    "nothing": list(range(LENGTH)),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_makes_it_search_more_often(text, monkeypatch):
    """Bytes of the last tokens once a token of the match, then the whole text once a token of the
    match."""
    monkeypatch.setattr(CountedBytes, "searched", [])
    monkeypatch.setattr(CountedText, "compared", [])
    PromptLookupDrafter(max_draft_tokens=4).propose(as_text(text).view(CountedText))
    assert len(CountedBytes.searched) <= 9 and max(CountedBytes.searched) <= max(
        4 * MOST_BYTES, len(text)
    )
    assert len(CountedText.compared) <= 8


def test_an_impossible_length_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        propose([1, 1], 0)
