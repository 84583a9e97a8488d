"""Prompt lookup: propose what followed the last tokens of the text when they occurred before.

Source: prompt-lookup decoding (Saxena, 2023). Differences: the most recent of the longest matches is taken, not the
first. A match that reaches the end of the text goes on with the draft itself (as in LZ77): a text that repeats with
some period keeps repeating.
"""

import numpy as np

from smartspec.control.records import DrafterSpec
from smartspec.core.batch import NO_DRAFT, Draft, chain
from smartspec.drafters.model_free import FORCED, ModelFreeDrafter

FEW = 12  # matches of the last token, so many or fewer, are compared faster one by one


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

    (0, 0) where even the last token is new. Narrows down one set of candidates, token by token towards the front; a few
    are compared one by one, the most recent first.
    """
    (ends,) = (token_ids[:-1] == token_ids[-1]).nonzero()
    num_matched = min(1, ends.size)
    while ends.size > FEW and num_matched < max_match:
        # Ends are distinct and none is below num_matched - 1, so only the first can have nothing in front of it.
        candidates = ends[int(ends[0] < num_matched) :]
        candidates = candidates[token_ids[candidates - num_matched] == token_ids[-1 - num_matched]]
        if not candidates.size:
            return ends.item(-1) + 1, num_matched
        ends, num_matched = candidates, num_matched + 1
    best, longest = -1, 0
    at, last = token_ids.item, len(token_ids) - 1
    for end in reversed(ends.tolist()):
        length = num_matched
        while length < max_match and length <= end and at(end - length) == at(last - length):
            length += 1
        if length > longest:
            best, longest = end, length
        if longest == max_match:
            break
    return best + 1, longest
