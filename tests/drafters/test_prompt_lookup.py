from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_arrays import as_text

from smartspec.drafters import prompt_lookup
from smartspec.drafters.prompt_lookup import PromptLookupDrafter


def naive_lookup(text: list[int], num_draft: int, max_match: int) -> tuple[list[int], int]:
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
    max_match=st.integers(1, 9),
)
def test_agrees_with_the_naive_search(text, num_draft, max_match):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_lookup, "MAX_MATCH", max_match)
        assert propose(text, num_draft) == naive_lookup(text, num_draft, max_match)


class CountedText(np.ndarray):
    """Tokens, or truth values of them, that note how often they are compared."""

    compared: ClassVar[list[int]] = []

    def __eq__(self, other):
        self.compared.append(len(self))
        return super().__eq__(other)


LENGTH = 1 << 15
HOSTILE = {
    "zeros": [0] * LENGTH,
    "seven tokens match everywhere": [300] * LENGTH + [1324] + [300] * 7,
    "a period": [1, 256] * (LENGTH // 2) + [1],
    "nothing": list(range(LENGTH)),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_is_compared_more_often_than_a_match_has_tokens(text, monkeypatch):
    monkeypatch.setattr(CountedText, "compared", [])
    PromptLookupDrafter(max_draft_tokens=4).propose(as_text(text).view(CountedText))
    assert 1 <= len(CountedText.compared) <= 8


def test_an_impossible_length_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        propose([1, 1], 0)
