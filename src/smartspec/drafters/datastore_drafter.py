"""Chains from finished answers and from a datastore."""

from copy import copy

import numpy as np

from smartspec.control import DrafterSpec
from smartspec.core.batch import NO_DRAFT, Batch, Draft, chain
from smartspec.drafters.answer_memory import AnswerMemory
from smartspec.drafters.datastore import Datastore
from smartspec.drafters.model_free import FORCED, ModelFreeDrafter
from smartspec.drafters.recycling import MAX_CONTEXT, append, pack

# with an answer that is followed; after shorter ones the datastore's counts say more
LEAST_MATCH = 5
STRENGTHS = 5  # of drafts from the datastore, by the share of their first token: 1 to STRENGTHS


class DatastoreDrafter(ModelFreeDrafter):
    """Goes on as the answer that best matches the text's end did, and after it with the datastore's
    likeliest tokens.

    datastore: None for answers alone. The match length of a draft is LEAST_MATCH or more where an
    answer is followed; less, by the share of its first token, where the datastore is.
    """

    spec = DrafterSpec("datastore", match_lengths=(0, 2, 3, 4, 5, 6, 9, 13, 24, FORCED))
    reads_texts = True

    def __init__(
        self,
        *,
        max_draft_tokens: int,
        datastore: Datastore | None = None,
        memory: AnswerMemory | None = None,
    ):
        super().__init__(max_draft_tokens=max_draft_tokens)
        self._datastore = datastore
        self._memory = AnswerMemory() if memory is None else memory
        self._answers = self._memory.of_salt("")

    def begin_step(self, batch: Batch) -> None:
        self._memory.follow(batch)
        super().begin_step(batch)

    def of_salt(self, cache_salt: str) -> "DatastoreDrafter":
        if not cache_salt:
            return self
        drafter = copy(self)
        drafter._answers = self._memory.of_salt(cache_salt)
        return drafter

    def propose(self, token_ids: np.ndarray) -> Draft:
        """The draft after a text, int32 [L]."""
        context = pack(token_ids)
        found = self._answers.matches(token_ids, context, self.max_draft_tokens, most=1)
        is_long = bool(found) and found[0].match >= LEAST_MATCH
        draft, strength = ([*found[0].tokens], found[0].match) if is_long else ([], 0)
        if self._datastore is not None:
            for token in draft[-MAX_CONTEXT:]:
                context = append(context, token)
            likeliest = self._datastore.likeliest
            while len(draft) < self.max_draft_tokens and (next_token := likeliest(context)):
                token, share = next_token
                strength = strength or 1 + int(share * STRENGTHS)
                draft.append(token)
                context = append(context, token)
        return chain(draft, match_length=strength) if draft else NO_DRAFT
