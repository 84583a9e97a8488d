"""Prompt lookup: propose what followed the last tokens of the text when they occurred before.

Source: prompt-lookup decoding (Saxena, 2023). Differences: the most recent of the longest matches
is taken, not the first. A match that reaches the end of the text goes on with the draft itself (as
in LZ77): a text that repeats with some period keeps repeating.

The end of the text is searched as bytes, which is the fastest where a match is near. How long that
takes is up to the text, so what is further away is compared in whole arrays, which take the same
time for every text.
"""

import numpy as np

from smartspec.control import DrafterSpec
from smartspec.core.batch import NO_DRAFT, Draft, chain
from smartspec.drafters.model_free import FORCED, ModelFreeDrafter

MAX_MATCH = 8  # the longest suffix that is looked up
MOST_BYTES = 1 << 14  # tokens that are searched as bytes, the last ones


class PromptLookupDrafter(ModelFreeDrafter):
    """Drafts from a request's own prompt and output; keeps no state.

    max_draft_tokens: length of every draft it finds.
    """

    spec = DrafterSpec("prompt-lookup", match_lengths=(0, 2, 3, 4, 6, 9, FORCED))

    def propose(self, token_ids: np.ndarray) -> Draft:
        """Draft for a text, int32 [L], with the length of the match; NO_DRAFT where there is
        none."""
        source, num_matched = _longest_match(token_ids)
        if not num_matched:
            return NO_DRAFT
        found = token_ids[source : source + self.max_draft_tokens]
        if len(found) < self.max_draft_tokens:
            found = token_ids[source + np.arange(self.max_draft_tokens) % len(found)]
        return chain(found, match_length=num_matched)


def _longest_match(token_ids: np.ndarray) -> tuple[int, int]:
    """Index after the most recent of the longest earlier matches of the suffix, and their length,
    at most MAX_MATCH.

    (0, 0) where even the last token is new.
    """
    num_before = max(len(token_ids) - MOST_BYTES, 0)
    found = _search_bytes(token_ids[num_before:])
    if found is None:
        return _search_arrays(token_ids, len(token_ids) - 1)
    if not num_before:
        return found
    source, num_matched = found[0] + num_before, found[1]
    if num_matched < MAX_MATCH:
        before = _search_arrays(token_ids, min(num_before + MAX_MATCH, len(token_ids)) - 1)
        if before[1] > num_matched:
            return before
    return (source if num_matched else 0), num_matched


def _search_bytes(token_ids: np.ndarray) -> tuple[int, int] | None:
    """The suffix is searched a token longer every time. None where its bytes also lie between two
    tokens: a text may have such places everywhere."""
    text, source, num_matched = token_ids.tobytes(), 0, 0
    width = token_ids.itemsize
    end = len(text) - width  # no match is the suffix itself
    while num_matched < MAX_MATCH:
        suffix = text[len(text) - width * (num_matched + 1) :]
        place = text.rfind(suffix, 0, end)
        if place < 0:
            break
        if place % width:
            return None
        source, num_matched, end = (
            place // width + num_matched + 1,
            num_matched + 1,
            place + len(suffix),
        )
    return source, num_matched


def _search_arrays(token_ids: np.ndarray, end: int) -> tuple[int, int]:
    """The place after the latest of the longest matches among the tokens before end, and its
    length. A place's tokens are compared with the last token, then with the one before it, and so
    on: MAX_MATCH times at most."""
    is_match, num_matched = np.ones(end + 1, dtype=bool), 0
    while num_matched < min(MAX_MATCH, end):
        # Whether so many tokens from each place on, and one more, are those at the end.
        is_longer = token_ids[: end - num_matched] == token_ids[len(token_ids) - num_matched - 1]
        is_longer &= is_match[1:]
        if not is_longer.any():
            break
        is_match, num_matched = is_longer, num_matched + 1
    return (is_match.tobytes().rfind(True) + num_matched if num_matched else 0), num_matched
