"""Finished answers of one cache salt: where the end of a text stands in them, and how they go on.

Source: SuffixDecoding (arXiv 2411.04975), which keeps a suffix tree of earlier answers. Here the
answers lie one after the other, and a chain leads from each place to the last one before it with
the same MIN_MATCH tokens, as zlib finds matches. So a token takes 12 bytes, adding one and looking
one up takes about a microsecond each, and the oldest are overwritten by the newest.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from smartspec.drafters.recycling import MAX_CONTEXT, NUM_ENTRIES, TOKEN_BITS, append, pack

MIN_MATCH = MAX_CONTEXT  # shorter ones are what recycling knows
MAX_MATCH = 32  # tokens that are compared
MAX_TRIED = 8  # places that are compared, the most recent first
MAX_TOKENS = 1 << 17  # that are remembered: a thousand answers, 1.6 MB
# before an answer, which are remembered with it: they tell which answer follows
PROMPT_TOKENS = MAX_MATCH
END = -1  # after each answer
NO_TOKENS = np.empty(0, dtype=np.int32)


class Followed(NamedTuple):
    """The tokens after a match, and its number of tokens."""

    tokens: Sequence[int]
    match: int


class FinishedAnswers:
    """num_tokens: of answers that are remembered, the oldest are overwritten. known: answers to
    begin with, int32 [n] with END after each."""

    def __init__(self, num_tokens: int = MAX_TOKENS, known: np.ndarray = NO_TOKENS):
        self._num_tokens = num_tokens
        # Places count on; what stands at a place is at its remainder by num_tokens. Arrays grow
        # until they are full.
        known = known[-num_tokens:]
        before, last = _chains(known)
        self._tokens = array("i", known.tobytes())
        # of each place: the last one before it of the same hash, or -1
        self._before = array("q", before.tobytes())
        self._last = array("q", last.tobytes())  # the last place of each hash of MIN_MATCH tokens
        self._end = len(known)  # place of the next token
        self._context = pack(known)
        self._unread: deque[array] = deque()
        self._num_read = 0  # tokens of the first of these
        self.num_unread = 0  # tokens that were added and not taken in

    def add(self, token_ids: Sequence[int]) -> None:
        """Remember an answer and the end of its prompt; index() does the work. What waits for that
        and would be overwritten by what waits after it is forgotten."""
        self._unread.append(array("i", (*token_ids, END)))
        self.num_unread += len(self._unread[-1])
        while len(self._unread) > 2 and self.num_unread - len(
            self._unread[1]
        ) >= self._num_tokens + len(self._unread[0]):
            self.num_unread -= len(self._unread[1])
            del self._unread[1]

    def index(self, num_tokens: int) -> int:
        """Take in so many of the tokens that were added; returns how many there were."""
        num_taken = 0
        while self._unread and num_taken < num_tokens:
            part = self._unread[0][self._num_read : self._num_read + num_tokens - num_taken]
            for token in part:
                self._append(token)
            num_taken += len(part)
            self._num_read += len(part)
            if self._num_read == len(self._unread[0]):
                self._unread.popleft()
                self._num_read = 0
        self.num_unread -= num_taken
        return num_taken

    def _append(self, token: int) -> None:
        """The context before it is that of this place."""
        slot = self._context % NUM_ENTRIES
        before, self._last[slot] = self._last[slot], self._end
        if self._end < self._num_tokens:
            self._tokens.append(token)
            self._before.append(before)
        else:
            at = self._end % self._num_tokens
            self._tokens[at], self._before[at] = token, before
        self._end += 1
        self._context = append(self._context, token)

    def matches(
        self, token_ids: np.ndarray, context: int, num_tokens: int, most: int = MAX_TRIED
    ) -> list[Followed]:
        """The tokens that followed the end of a text, int32 [L], whose packed context that is, at
        most so many tokens; after the longest match first, then the most recent; at most so many
        matches."""
        place, oldest = self._last[context % NUM_ENTRIES], max(self._end - self._num_tokens, 0)
        if place <= oldest:
            return []
        found, text = [], token_ids[-MAX_MATCH:].tolist()
        for _ in range(MAX_TRIED):
            if (match := self._match(text, place, oldest)) >= MIN_MATCH:
                found.append((match, place))
            place = self._before[place % self._num_tokens]
            if place <= oldest:
                break
        found.sort(key=lambda each: -each[0])
        return [Followed(self._following(at, num_tokens), match) for match, at in found[:most]]

    def _match(self, text: Sequence[int], place: int, oldest: int) -> int:
        tokens, size = self._tokens, self._num_tokens
        longest = min(MAX_MATCH, len(text), place - oldest)
        for length in range(longest):
            if text[-1 - length] != tokens[(place - 1 - length) % size]:
                return length
        return longest

    def _following(self, place: int, num_tokens: int) -> list[int]:
        """The rest of an answer."""
        places = range(place, min(place + num_tokens, self._end))
        tokens = [self._tokens[each % self._num_tokens] for each in places]
        return tokens[: tokens.index(END)] if END in tokens else tokens


def _chains(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The link from each place to the one before of the same hash, and the last place of each:
    int64 [n] and [NUM_ENTRIES]."""
    context = np.zeros(len(tokens), dtype=np.int64)
    for back in range(MIN_MATCH, 0, -1):
        context[back:] = context[back:] << TOKEN_BITS | tokens[:-back] + 1
    slots, places = context % NUM_ENTRIES, np.arange(len(tokens))
    before, last = np.full(len(tokens), -1), np.full(NUM_ENTRIES, -1)
    order = np.argsort(slots, kind="stable")
    is_same = slots[order[1:]] == slots[order[:-1]]
    before[order[1:][is_same]] = order[:-1][is_same]
    last[slots] = places  # of several the last one
    return before, last
