"""Predicted outputs: a request brings a guess of its answer, and drafts are how the guess goes on.

The guess is aligned with the answer by its position: a draft begins after the last token that
agreed, wherever else the same words stand. After a divergence the place is found again: after the
longest match of what was emitted last, the nearest to the divergence first; or as if a token had
been replaced or inserted there. While several places are possible, the draft is a tree of what
follows them.

Source: the `prediction` of OpenAI's chat completions, of which only the interface is published.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from smartspec.control import DrafterSpec, FreeTests
from smartspec.control.records import MAX_TREE_NODES
from smartspec.core.batch import NO_DRAFT, Batch, Draft, Verification, chain, shorten
from smartspec.core.request import Request
from smartspec.drafters.model_free import FORCED, ModelFreeDrafter

MAX_MATCH = 8  # tokens before a place that are compared
MAX_SCANNED = 64  # places that are compared, the nearest to the divergence
CERTAIN = 3  # tokens that agree before a place is believed
# chance that the next token of a place agrees, where a tree is made; calibration learns the true
# one
AGREEMENT = 0.8


class PredictionDrafter(ModelFreeDrafter):
    """Drafts from core.speculation.SpeculationOptions.predicted_token_ids, for requests that have
    some.

    It counts on the request how many of its tokens were accepted and rejected. The match length of
    a chain is the number of tokens in a row that agreed.
    """

    spec = DrafterSpec("prediction", match_lengths=(0, 1, 3, 8, 16, FORCED))

    def __init__(self, *, max_draft_tokens: int):
        super().__init__(max_draft_tokens=max_draft_tokens)
        self._alignments: WeakKeyDictionary[Request, Alignment] = WeakKeyDictionary()

    def propose_to(self, request: Request) -> Draft:
        if not (guess := request.speculation.predicted_token_ids):
            return NO_DRAFT
        if request not in self._alignments:
            self._alignments[request] = Alignment(np.array(guess, dtype=np.int32))
        alignment = self._alignments[request]
        alignment.follow(request.output_token_ids)
        return alignment.draft(self.max_draft_tokens)

    def observe(
        self,
        batch: Batch,
        verified: np.ndarray,
        decoding: Sequence[Verification],
        prefill: Sequence[Verification | None],
    ) -> FreeTests:
        for row in np.flatnonzero(verified).tolist():
            # what a grammar forces is none of the guess
            if self._drafts[row].match_length < FORCED:
                request, num_accepted = batch.decoding[row], decoding[row].num_accepted
                request.accepted_prediction_tokens += num_accepted
                request.rejected_prediction_tokens += int(verified[row]) - num_accepted
        return super().observe(batch, verified, decoding, prefill)


class Alignment:
    """The places of an answer in a guess of it, int32 [M]."""

    def __init__(self, guess: np.ndarray):
        self._guess = guess
        self._num_read = 0  # tokens of the answer
        # Where the next token may stand, the likeliest first; and how many in a row agreed before
        # that place.
        self._places: dict[int, int] = {0: 0}
        self._certain = 0  # the last place that was believed

    def follow(self, answer: np.ndarray) -> None:
        """Read what the answer, int32 [L], has got since the last call."""
        while self._num_read < len(answer):
            self._num_read += 1
            self._read(answer[: self._num_read])

    def _read(self, answer: np.ndarray) -> None:
        token, guess = answer[-1], self._guess
        agreed = {
            at + 1: num + 1
            for at, num in self._places.items()
            if at < len(guess) and guess[at] == token
        }
        self._places = agreed or self._found_again(answer)
        place, num_agreed = next(iter(self._places.items()), (0, 0))
        if num_agreed >= CERTAIN:
            self._certain = place

    def _found_again(self, answer: np.ndarray) -> dict[int, int]:
        """Places after the longest match of the answer's end. Where that is short, the nearest of
        them alone; the next token may as well be the one after the divergence, or still stand at
        it."""
        ends = np.flatnonzero(self._guess == answer[-1])
        num_before = int(np.searchsorted(ends, self._certain))
        after = ends[num_before : num_before + MAX_SCANNED]
        ends = np.concatenate((after, ends[:num_before][::-1][: MAX_SCANNED - len(after)]))
        lengths = self._match_lengths(ends, answer)
        longest = lengths.max(initial=0)
        num_kept = 2 if longest >= CERTAIN else 1
        found = dict.fromkeys((ends[lengths == longest][:num_kept] + 1).tolist(), int(longest))
        if longest < CERTAIN:
            for place in (self._certain + 1, self._certain):
                found.setdefault(place, 0)
        return {place: num for place, num in found.items() if place < len(self._guess)}

    def _match_lengths(self, ends: np.ndarray, answer: np.ndarray) -> np.ndarray:
        """Tokens up to these places of the guess, int [E], that are also the last ones of the
        answer: int [E]."""
        back = np.arange(min(MAX_MATCH, len(answer)))
        places = ends[:, None] - back
        is_equal = (self._guess[np.maximum(places, 0)] == answer[len(answer) - 1 - back]) & (
            places >= 0
        )
        return np.logical_and.accumulate(is_equal, axis=1).sum(axis=1)

    def draft(self, num_tokens: int) -> Draft:
        """Draft what follows, at most so many tokens: a chain where only one place is possible."""
        following = [self._guess[place : place + num_tokens].tolist() for place in self._places]
        if len(following) > 1:
            return shorten(_tree(following), min(num_tokens, MAX_TREE_NODES))
        if not following or not following[0]:
            return NO_DRAFT
        return chain(following[0], match_length=min(*self._places.values(), FORCED - 1))


def _tree(following: Sequence[Sequence[int]]) -> Draft:
    """Several texts as one tree, whose nodes stand in order of the chance to be reached. The first
    text is the likeliest: their chances go as 1, 1/2, 1/3."""
    weights: dict[tuple[int, ...], float] = {
        (): sum(1 / rank for rank in range(1, len(following) + 1))
    }
    for rank, tokens in enumerate(following, start=1):
        for depth in range(1, len(tokens) + 1):
            path = tuple(tokens[:depth])
            weights[path] = weights.get(path, 0.0) + 1 / rank
    ordered = sorted(weights, key=lambda path: (-weights[path] * AGREEMENT ** len(path), len(path)))
    numbers = {path: number for number, path in enumerate(ordered, start=-1)}
    nodes = ordered[1:]
    return Draft(
        np.array([path[-1] for path in nodes], dtype=np.int32),
        np.array([numbers[path[:-1]] for path in nodes], dtype=np.int32),
        confidence=np.array([AGREEMENT * weights[path] / weights[path[:-1]] for path in nodes]),
    )
