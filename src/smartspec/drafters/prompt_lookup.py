"""Prompt lookup: propose what followed the last tokens of the text when they occurred before.

Source: prompt-lookup decoding (Saxena, 2023). Differences: the most recent of the longest matches is taken, not the
first. A match that reaches the end of the text goes on with the draft itself (as in LZ77): a text that repeats with
some period keeps repeating.
"""

import numpy as np

from smartspec.control.records import DrafterSpec
from smartspec.core.batch import NO_DRAFT, Draft, chain
from smartspec.drafters.model_free import FORCED, ModelFreeDrafter


class PromptLookupDrafter(ModelFreeDrafter):
    """Drafts from a request's own prompt and output; keeps no state.

    max_draft_tokens: length of every draft it finds. min_match, max_match: shortest and longest suffix looked up.
    """

    spec = DrafterSpec("prompt-lookup", match_lengths=(0, 2, 3, 4, 6, 9, FORCED))

    def __init__(self, *, max_draft_tokens: int, min_match: int = 1, max_match: int = 8):
        super().__init__(max_draft_tokens=max_draft_tokens)
        if not 1 <= min_match <= max_match:
            raise ValueError(f"need 1 <= min_match <= max_match, got {min_match} and {max_match}")
        self.min_match = min_match
        self.max_match = max_match

    def propose(self, token_ids: np.ndarray) -> Draft:
        """Draft for a text, int32 [L], with the length of the match; NO_DRAFT where there is none."""
        source, num_matched = _longest_match(token_ids, self.max_match)
        if num_matched < self.min_match:
            return NO_DRAFT
        found = token_ids[source : source + self.max_draft_tokens]
        if len(found) < self.max_draft_tokens:
            found = token_ids[source + np.arange(self.max_draft_tokens) % len(found)]
        return chain(found, match_length=num_matched)


def _longest_match(token_ids: np.ndarray, max_match: int) -> tuple[int, int]:
    """Index after the most recent of the longest earlier matches of the suffix, and their length, at most max_match.

    (0, 0) where even the last token is new. The suffix is searched as bytes, a token more every time.
    """
    text, source, num_matched = token_ids.tobytes(), 0, 0
    width = token_ids.itemsize
    end = len(text) - width  # no match is the suffix itself
    while num_matched < max_match:
        suffix = text[len(text) - width * (num_matched + 1) :]
        place = text.rfind(suffix, 0, end)
        while place % width and place > 0:  # between two tokens
            place = text.rfind(suffix, 0, place + len(suffix) - 1)
        if place < 0:
            break
        source, num_matched, end = place // width + num_matched + 1, num_matched + 1, place + len(suffix)
    return source, num_matched
