"""Recycling: propose what the target wrote earlier after the same last tokens, in any request.

Source: Token Recycling (Luo et al., 2024, arXiv 2408.08696), which keeps the target's likeliest
next tokens of every token, shared by all requests, and chains them into a tree. Differences:
contexts of one to three tokens, of which the longest known one speaks; only the most recent next
token of each; and only what was emitted is learned, for the target's predictions after rejected
draft tokens brought nothing. A table is shared by the requests of one
cache salt: how fast a request is may tell that another one of them had similar text, what it reads
never does.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from smartspec.control import DrafterSpec
from smartspec.core.batch import NO_DRAFT, Draft, chain
from smartspec.core.origin import key_of
from smartspec.core.per_key import PerKey
from smartspec.drafters.model_free import FORCED, ModelFreeDrafter

MAX_CONTEXT = 3
# Contexts are packed into int64, their newest token in the lowest bits. Larger token ids would only
# be confused.
TOKEN_BITS = 20
MASKS = tuple((1 << TOKEN_BITS * num_tokens) - 1 for num_tokens in range(MAX_CONTEXT + 1))
LONGEST_FIRST = tuple(reversed(list(enumerate(MASKS))[1:]))
NUM_ENTRIES = 65521  # a prime: the remainder spreads contexts evenly
# of one API key, a table of 0.8 MB each; the one of requests without a salt is not counted
MAX_SALTS = 64


class RecyclingDrafter(ModelFreeDrafter):
    """Drafts from a table context -> next token, filled by learn(); an entry makes room for the
    next one in its place.

    max_draft_tokens: length of the longest draft. num_entries: contexts remembered, 12 bytes each.
    """

    spec = DrafterSpec("recycling", match_lengths=(0, 2, 3, FORCED))

    def __init__(self, *, max_draft_tokens: int, num_entries: int = NUM_ENTRIES):
        super().__init__(max_draft_tokens=max_draft_tokens)
        if num_entries < 1:
            raise ValueError(f"num_entries must be at least 1, got {num_entries}")
        self._of_salt: PerKey[str, RecyclingDrafter] = PerKey(MAX_SALTS)
        # Read and written one number at a time, where an array of numpy takes ten times as long.
        self._contexts = array("q", [-1]) * num_entries  # no context is negative
        self._next_tokens = array("i", [-1]) * num_entries

    def of_salt(self, cache_salt: str) -> "RecyclingDrafter":
        """A table of its own for every salt; of a key's beyond MAX_SALTS the longest unused is
        forgotten."""
        table = self._known(cache_salt)
        if table is None:
            table = type(self)(**self._options())
            self._of_salt.put(key_of(cache_salt), cache_salt, table)
        return table

    def reader_of_salt(self, cache_salt: str) -> "RecyclingDrafter":
        table = self._known(cache_salt)
        return self._blank if table is None else table

    def learners(self, cache_salts: Iterable[str]) -> Mapping[str, ModelFreeDrafter]:
        """The learners of at most MAX_SALTS of a key, first those that have a table: with more,
        each would be forgotten for the next one, in every step."""
        tables: dict[str, ModelFreeDrafter] = {}
        num_of_key: Counter[str] = Counter()
        for salt in sorted(
            dict.fromkeys(cache_salts), key=lambda salt: (key_of(salt), salt) not in self._of_salt
        ):
            num_of_key[key_of(salt)] += bool(salt)
            if num_of_key[key_of(salt)] <= MAX_SALTS:
                tables[salt] = self.of_salt(salt)
        return tables

    def _known(self, cache_salt: str) -> "RecyclingDrafter | None":
        return self._of_salt.get(key_of(cache_salt), cache_salt) if cache_salt else self

    @cached_property
    def _blank(self) -> "RecyclingDrafter":
        """An empty table, of which nothing is learned: for all salts that have none."""
        return type(self)(**self._options() | {"num_entries": 1})

    def _options(self) -> dict:
        """The options to make the drafter of another salt."""
        return {"max_draft_tokens": self.max_draft_tokens, "num_entries": len(self._contexts)}

    def learn(self, token_ids: np.ndarray, emitted_token_ids: tuple[int, ...]) -> None:
        """Remember that the target emitted these tokens after the text token_ids, int32 [L]."""
        context, contexts, next_tokens = pack(token_ids), self._contexts, self._next_tokens
        for token in emitted_token_ids:
            for mask in MASKS[1:]:
                key = context & mask
                slot = key % len(contexts)
                contexts[slot], next_tokens[slot] = key, token
            context = append(context, token)

    def propose(self, token_ids: np.ndarray) -> Draft:
        """Draft for a text, int32 [L], that ends in a known context, with its length, else
        NO_DRAFT."""
        draft: list[int] = []
        context, num_known = pack(token_ids), 0
        contexts, next_tokens = self._contexts, self._next_tokens
        while len(draft) < self.max_draft_tokens:
            for num_tokens, mask in LONGEST_FIRST:
                key = context & mask
                slot = key % len(contexts)
                if contexts[slot] == key:
                    num_known = num_known or num_tokens
                    break
            else:
                break
            token = next_tokens[slot]
            draft.append(token)
            context = append(context, token)
        return chain(draft, match_length=num_known) if draft else NO_DRAFT


def pack(token_ids: np.ndarray) -> int:
    context = 0
    for token in token_ids[-MAX_CONTEXT:].tolist():
        context = context << TOKEN_BITS | token + 1
    return context & MASKS[MAX_CONTEXT]


def append(context: int, token: int) -> int:
    return (context << TOKEN_BITS | token + 1) & MASKS[MAX_CONTEXT]
