"""The common part of all drafters without a model: drafts made from text alone, for every row of
every step."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from smartspec.control import DrafterSpec, DrafterView, FreeTests
from smartspec.control.records import StopRule
from smartspec.core.batch import (
    NO_DRAFT,
    Batch,
    Draft,
    Verification,
    chain,
    no_tokens,
    shorten,
    without_nodes,
)
from smartspec.core.draft_columns import confidence_of, parents_of
from smartspec.core.grammar import Grammar
from smartspec.core.request import Request

LEARN_STEPS = 16  # that are learned from together, where the drafter is not queried before
# match length of drafts that a grammar forces, longer than any match: a pool of their own
FORCED = 32


class ModelFreeDrafter:
    """Implements core.drafter.Drafter for classes that say what they are (spec) and how they draft
    (propose).

    Tokens that a request's grammar forces are drafted where the drafter's own draft lacks them, and
    in steps in which it is not queried. Drafts are deterministic, so they can be judged without
    verification. Where all verified tokens of a row were accepted, or none was verified, the next
    draft token is compared with the token that the target emitted. Emitted tokens are learned when
    the drafter is queried next, or after LEARN_STEPS steps. That saves time in steps that draft
    nothing, and several steps together take less time than one by one.
    """

    spec: DrafterSpec
    reads_texts = False  # whether it is made with a datastore and a memory of finished answers, too

    def __init__(self, *, max_draft_tokens: int):
        """max_draft_tokens: most nodes of a draft; of longer ones the rest is left out. ValueError
        below 1."""
        if max_draft_tokens < 1:
            raise ValueError(f"max_draft_tokens must be at least 1, got {max_draft_tokens}")
        self.max_draft_tokens = max_draft_tokens
        self._drafts: tuple[Draft, ...] = ()
        # Requests whose text was added to since something was learned, and how many tokens it had
        # before.
        self._unlearned: dict[Request, int] = {}
        self._num_unlearned_steps = 0
        self._learns = type(self).learn is not ModelFreeDrafter.learn

    def propose(self, token_ids: np.ndarray) -> Draft:
        """The draft after a text, int32 [L]; NO_DRAFT where there is none."""
        raise NotImplementedError

    def propose_to(self, request: Request) -> Draft:
        """The draft after a request's text, by what it may know."""
        salt = request.origin.cache_salt
        return (self.reader_of_salt(salt) if salt else self).propose(request.token_ids)

    def learn(self, token_ids: np.ndarray, emitted_token_ids: tuple[int, ...]) -> None:
        """The target emitted these tokens after that text, int32 [L]."""

    def of_salt(self, cache_salt: str) -> "ModelFreeDrafter":
        """The object that proposes and learns for requests of this salt: its own where drafters
        remember texts."""
        return self

    def reader_of_salt(self, cache_salt: str) -> "ModelFreeDrafter":
        """The drafter for requests of this salt. Nothing is kept for a salt of which nothing was
        learned."""
        return self.of_salt(cache_salt)

    def learners(self, cache_salts: Iterable[str]) -> "Mapping[str, ModelFreeDrafter]":
        """The drafters, by salt, that learn from requests that run together. A salt that is left
        out is not learned from."""
        return {salt: self.of_salt(salt) for salt in cache_salts}

    def begin_step(self, batch: Batch) -> None:
        self._drafts = (NO_DRAFT,) * len(batch.decoding)

    def _drafts_of(self, requests: Sequence[Request], is_queried: bool) -> list[Draft]:
        drafts = [NO_DRAFT] * len(requests)
        for row, request in enumerate(requests):
            if is_queried:
                drafts[row] = self.propose_to(request)
                if len(drafts[row].token_ids) > self.max_draft_tokens:
                    drafts[row] = shorten(drafts[row], self.max_draft_tokens)
            if request.grammar is not None:
                drafts[row] = self._under_grammar(drafts[row], request.grammar)
        return drafts

    def _under_grammar(self, draft: Draft, grammar: Grammar) -> Draft:
        """Ends before tokens that break the grammar: the target would not say them. If what it
        forces is not in the draft, that is drafted."""
        allowed = [grammar.num_allowed(path) == len(path) for path in draft.paths[1:]]
        draft = without_nodes(draft, np.array(allowed, dtype=bool))
        forced = tuple(grammar.forced()[: self.max_draft_tokens])
        return draft if forced in draft.paths else chain(forced, match_length=FORCED)

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        if is_queried:
            self._learn()
        elif all([request.grammar is None for request in batch.decoding]):
            return _nothing_found(len(batch.decoding))
        self._drafts = tuple(self._drafts_of(batch.decoding, is_queried))
        lengths = [len(draft.token_ids) for draft in self._drafts]
        if not any(lengths):
            return _nothing_found(len(lengths))
        return DrafterView(
            np.array(lengths, dtype=np.int64),
            np.array([draft.match_length for draft in self._drafts], dtype=np.int64),
            no_tokens(len(lengths)),
            confidence=confidence_of(self._drafts, self.max_draft_tokens),
            parents=parents_of(self._drafts, self.max_draft_tokens),
        )

    def draft(self, batch: Batch, lengths: np.ndarray, stop: StopRule | None) -> Sequence[Draft]:
        return [
            shorten(draft, length) if length else NO_DRAFT
            for draft, length in zip(self._drafts, lengths.tolist(), strict=True)
        ]

    def observe(
        self,
        batch: Batch,
        verified: np.ndarray,
        decoding: Sequence[Verification],
        prefill: Sequence[Verification | None],
    ) -> FreeTests:
        if self._learns:
            self._num_unlearned_steps += 1
            if self._num_unlearned_steps > LEARN_STEPS:
                self._learn()
            for request in (*batch.decoding, *batch.prefill):
                self._unlearned.setdefault(request, request.num_tokens)
        return free_tests(self._drafts, verified, decoding)

    def _learn(self) -> None:
        written, self._unlearned, self._num_unlearned_steps = self._unlearned, {}, 0
        learners = self.learners([request.origin.cache_salt for request in written])
        for request, start in written.items():
            emitted = request.tokens[start : request.num_tokens].tolist()
            if emitted and (learner := learners.get(request.origin.cache_salt)) is not None:
                learner.learn(request.tokens[:start], tuple(emitted))


@lru_cache
def _nothing_found(num_rows: int) -> DrafterView:
    return DrafterView(*[no_tokens(num_rows)] * 3)


def free_tests(
    drafts: Sequence[Draft], verified: np.ndarray, decoding: Sequence[Verification]
) -> FreeTests:
    """The test of each row's first draft token that was not verified, where the target's token
    there is known; of a tree only where nothing was verified. verified: int [R]."""
    if not any(drafts):
        return FreeTests(verified, no_tokens(len(verified)), no_tokens(len(verified)))
    tested, matched = [0] * len(drafts), [False] * len(drafts)
    rows = zip(drafts, verified.tolist(), decoding, strict=True)
    for row, (draft, position, verification) in enumerate(rows):
        emitted = verification.emitted_token_ids
        if position >= len(emitted) or position >= len(draft.token_ids):
            continue
        if draft.is_chain:
            tested[row], matched[row] = 1, emitted[position] == draft.token_ids.item(position)
        elif not position:
            tested[row], matched[row] = 1, emitted[0] in draft.token_ids[draft.parents < 0]
    return FreeTests(verified, np.array(tested, dtype=np.int64), np.array(matched, dtype=np.int64))
