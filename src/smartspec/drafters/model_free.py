"""What all drafters without a model share: drafts made from text alone, for every row of every step."""

from collections.abc import Sequence

import numpy as np

from smartspec.control.records import DrafterSpec, DrafterView, FreeTests, StopRule
from smartspec.core.batch import NO_DRAFT, Batch, Draft, Verification, chain, shorten, without_nodes
from smartspec.core.draft_columns import confidence_of, parents_of
from smartspec.core.grammar import Grammar
from smartspec.core.request import Request

FORCED = 32  # match length of drafts that a grammar forces, longer than any match: a pool of their own


class ModelFreeDrafter:
    """Implements core.drafter.Drafter for whoever says what it is (spec) and how it drafts (propose).

    What the grammar of a request forces is drafted where the drafter does not draft it itself, and in steps in which it
    is not queried. Drafts are deterministic, so whether they are right is known without verifying them: in every row
    whose draft was not verified, or accepted as far as it was, the next token is compared with what the target emitted
    there.
    """

    spec: DrafterSpec

    def __init__(self, *, max_draft_tokens: int):
        """max_draft_tokens: most nodes of a draft; of longer ones the rest is left out. ValueError below 1."""
        if max_draft_tokens < 1:
            raise ValueError(f"max_draft_tokens must be at least 1, got {max_draft_tokens}")
        self.max_draft_tokens = max_draft_tokens
        self._drafts: tuple[Draft, ...] = ()

    def propose(self, token_ids: np.ndarray) -> Draft:
        """The draft behind a text, int32 [L]; NO_DRAFT where there is none."""
        raise NotImplementedError

    def learn(self, token_ids: np.ndarray, emitted_token_ids: tuple[int, ...]) -> None:
        """The target emitted these tokens behind that text, int32 [L]."""

    def of_salt(self, cache_salt: str) -> "ModelFreeDrafter":
        """Who proposes and learns for requests of this salt: somebody of its own where drafters remember texts."""
        return self

    def begin_step(self, batch: Batch) -> None:
        self._drafts = (NO_DRAFT,) * len(batch.decoding)

    def _draft_of(self, request: Request, is_queried: bool) -> Draft:
        draft = self.of_salt(request.origin.cache_salt).propose(request.token_ids) if is_queried else NO_DRAFT
        draft = shorten(draft, self.max_draft_tokens)
        return draft if request.grammar is None else self._under_grammar(draft, request.grammar)

    def _under_grammar(self, draft: Draft, grammar: Grammar) -> Draft:
        """Ends before tokens that break the grammar: the target would not say them. If what it forces is not in the
        draft, that is drafted."""
        allowed = [grammar.num_allowed(path) == len(path) for path in draft.paths[1:]]
        draft = without_nodes(draft, np.array(allowed, dtype=bool))
        forced = tuple(grammar.forced()[: self.max_draft_tokens])
        return draft if forced in draft.paths else chain(np.array(forced, dtype=np.int32), match_length=FORCED)

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        self._drafts = tuple([self._draft_of(request, is_queried) for request in batch.decoding])
        if not any(self._drafts):
            nothing = np.zeros(len(self._drafts), dtype=np.int64)
            return DrafterView(nothing, nothing, nothing)
        lengths = np.array([len(draft) for draft in self._drafts], dtype=np.int64)
        return DrafterView(
            lengths,
            np.array([draft.match_length for draft in self._drafts], dtype=np.int64),
            confidence=confidence_of(self._drafts, self.max_draft_tokens),
            parents=parents_of(self._drafts, self.max_draft_tokens),
        )

    def draft(self, batch: Batch, lengths: np.ndarray, stop: StopRule | None) -> Sequence[Draft]:
        return list(map(shorten, self._drafts, lengths.tolist()))

    def observe(
        self,
        batch: Batch,
        verified: np.ndarray,
        decoding: Sequence[Verification],
        prefill: Sequence[Verification | None],
    ) -> FreeTests:
        rows = zip((*batch.decoding, *batch.prefill), (*decoding, *prefill), strict=True)
        for request, verification in rows:
            if verification is not None:
                self.of_salt(request.origin.cache_salt).learn(request.token_ids, verification.emitted_token_ids)
        return free_tests(self._drafts, verified, decoding)


def free_tests(drafts: Sequence[Draft], verified: np.ndarray, decoding: Sequence[Verification]) -> FreeTests:
    """Of each row's first draft token that was not verified, where the target's token there is known; of a tree only
    where nothing was verified. verified: int [R]."""
    tested, matched = np.zeros((2, len(verified)), dtype=np.int64)
    if not any(drafts):
        return FreeTests(verified, tested, matched)
    for row, position in enumerate(verified.tolist()):
        emitted, draft = decoding[row].emitted_token_ids, drafts[row]
        if not draft.is_chain:
            if not position and emitted:
                tested[row], matched[row] = 1, emitted[0] in draft.token_ids[draft.parents < 0]
        elif position < min(len(emitted), len(draft)):
            tested[row], matched[row] = 1, emitted[position] == draft.token_ids[position]
    return FreeTests(verified, tested, matched)
