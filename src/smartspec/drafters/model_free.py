"""What all drafters without a model share: drafts made from text alone, for every row of every step."""

from collections.abc import Sequence

import numpy as np

from smartspec.control.records import DrafterSpec, DrafterView, FreeTests, StopRule
from smartspec.core.batch import Batch, Draft, Verification, shorten


class ModelFreeDrafter:
    """Implements core.drafter.Drafter for whoever says what it is (spec) and how it drafts (propose).

    Its drafts are deterministic, so whether they are right is known without verifying them: in every row whose draft
    was not verified, or accepted as far as it was, the next token is compared with what the target emitted there.
    """

    spec: DrafterSpec

    def __init__(self):
        self._drafts: tuple[Draft, ...] = ()

    def propose(self, token_ids: np.ndarray) -> Draft:
        """The draft behind a text, int32 [L]; NO_DRAFT where there is none."""
        raise NotImplementedError

    def learn(self, token_ids: np.ndarray, emitted_token_ids: tuple[int, ...]) -> None:
        """The target emitted these tokens behind that text, int32 [L]."""

    def begin_step(self, batch: Batch) -> None:
        self._drafts = tuple(self.propose(request.token_ids) for request in batch.decoding)

    def view(self, batch: Batch) -> DrafterView:
        lengths = np.array([len(draft) for draft in self._drafts], dtype=np.int64)
        return DrafterView(lengths, np.array([draft.match_length for draft in self._drafts], dtype=np.int64))

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
                self.learn(request.token_ids, verification.emitted_token_ids)
        return free_tests(self._drafts, verified, decoding)


def free_tests(drafts: Sequence[Draft], verified: np.ndarray, decoding: Sequence[Verification]) -> FreeTests:
    """Of each row's first draft token that was not verified, where the target's token there is known. verified: int
    [R]."""
    tested, matched = np.zeros((2, len(verified)), dtype=np.int64)
    for row, position in enumerate(verified.tolist()):
        emitted, draft = decoding[row].emitted_token_ids, drafts[row]
        if position < min(len(emitted), len(draft)):
            tested[row], matched[row] = 1, emitted[position] == draft.token_ids[position]
    return FreeTests(verified, tested, matched)
