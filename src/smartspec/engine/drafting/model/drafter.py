"""A smaller model as drafter: batched over requests, with its own KV cache in the same slots.

The draft model keeps, per slot, how many tokens of the committed text its KV holds. When it was not
used for a while that lags, and its next draft begins with a draft prefill: one pass over everything
it missed. When its drafts were rejected, the count falls back.

Its embedding and output may have more rows or fewer than the target's, whose tokenizer it shares:
families pad them differently by size. Its context may be shorter: it drafts up to there.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from smartspec.control.records import DrafterSpec, DrafterView, FreeTests, StopRule
from smartspec.core.batch import Batch, Draft, Verification
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.shell import KVDrafter
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.sampling.logit_rules import BANNED

MAX_PREFILL_CHUNK = 512
MAX_GUESSES = 8  # logits of prefilled tokens are only for learning: a few say enough


class DraftModel(KVDrafter):
    """Chains for several requests at once; one pass of the draft model per depth. Implements
    core.drafter.Drafter."""

    def __init__(
        self,
        runner: ModelRunner,
        num_slots: int,
        name: str = "draft model",
        *,
        vocab_size: int | None = None,
    ):
        """vocab_size: the width of the target's logits, None for the draft model's."""
        super().__init__(runner, DrafterSpec(name, has_passes=True), num_slots)
        self.max_len = runner.max_len
        lacking = 0 if vocab_size is None else vocab_size - runner.loaded.vocab_size
        self._num_lacking = lacking  # columns, below 0: extra
        # of this step's draft prefill: int [R]
        self._guessed = self._guessed_right = np.zeros(0, dtype=np.int64)

    def begin_step(self, batch: Batch) -> None:
        """Follow the slots, and forget the guesses of the last step."""
        super().begin_step(batch)
        self._guessed, self._guessed_right = np.zeros((2, len(batch.decoding)), dtype=np.int64)

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        """Drafts that its context has room for; the lag of its KV."""
        room = self._room(batch)
        lag = np.array(
            [r.num_tokens - 1 - self._num_seen[r.slot] for r in batch.decoding], dtype=np.int64
        )
        return DrafterView(room, lag=np.where(room > 0, lag, 0))

    def draft(self, batch: Batch, lengths: np.ndarray, stop: StopRule | None = None) -> list[Draft]:
        """The same, and no longer than there is room: a plan may be older than the text."""
        return super().draft(batch, np.minimum(lengths, self._room(batch)), stop)

    def _room(self, batch: Batch) -> np.ndarray:
        """The longest draft of each row, int [R]. Its last token need not be read."""
        num_tokens = np.array([request.num_tokens for request in batch.decoding], dtype=np.int64)
        return np.maximum(self.max_len + 1 - num_tokens, 0)

    def observe(
        self,
        batch: Batch,
        verified: np.ndarray,
        decoding: Sequence[Verification],
        prefill: Sequence[Verification | None],
    ) -> FreeTests:
        """The tests of its guesses in this step's draft prefill."""
        return FreeTests(np.zeros_like(verified), self._guessed, self._guessed_right)

    def _prefill(self, request: Request) -> np.ndarray:
        """Feed all but the last chunk of what the model's KV lacks; returns that last chunk."""
        missing = request.token_ids[self._num_seen[request.slot] :]
        while len(missing) > MAX_PREFILL_CHUNK:
            chunk, missing = missing[:MAX_PREFILL_CHUNK], missing[MAX_PREFILL_CHUNK:]
            self._forward(
                [Segment(request.slot, int(self._num_seen[request.slot]), chunk, num_logits=0)]
            )
            self._num_seen[request.slot] += len(chunk)
        return missing

    def _forward(self, segments: list[Segment]) -> torch.Tensor:
        """Logits as wide as the target's. A token that the draft model has no row for is some other
        one to it."""
        if self._num_lacking > 0:
            last = self.runner.loaded.vocab_size - 1
            segments = [
                replace(segment, token_ids=np.minimum(segment.token_ids, last))
                for segment in segments
            ]
        logits = self.runner.forward(segments)
        return F.pad(logits, (0, self._num_lacking), value=BANNED) if self._num_lacking else logits

    def _pass(
        self, requests: Sequence[Request], rows: list[int], newest: list[np.ndarray], depth: int
    ) -> torch.Tensor:
        """See ChainPass. The first pass feeds all that the model's KV lacks, and notes what the
        model would have guessed for the last tokens of that."""
        requests = [requests[row] for row in rows]
        feeds = newest if depth else list(map(self._prefill, requests))
        num_logits = [1] * len(feeds)
        if depth == 0:
            num_logits = [
                1 + _num_guesses(request, feed)
                for request, feed in zip(requests, feeds, strict=True)
            ]
        segments = []
        for request, feed, num in zip(requests, feeds, num_logits, strict=True):
            segments.append(Segment(request.slot, int(self._num_seen[request.slot]), feed, num))
            self._num_seen[request.slot] += len(feed)
        logits = self._forward(segments)
        if sum(num_logits) == len(feeds):
            return logits
        ends = np.cumsum(num_logits)
        token_ids = logits.argmax(dim=-1).cpu().numpy()
        guesses = [
            token_ids[end - num : end - 1] for end, num in zip(ends, num_logits, strict=True)
        ]
        self._guessed[rows], self._guessed_right[rows] = _count_matches(guesses, feeds)
        return logits[torch.from_numpy(ends - 1).to(logits.device)]


def _num_guesses(request: Request, feed: np.ndarray) -> int:
    """Tokens of this feed whose guess is an observation: emitted ones (a prompt is not the
    target's), and only of greedy requests (a sampled token is a random draw)."""
    return (
        min(len(feed) - 1, request.num_output_tokens, MAX_GUESSES) if request.params.greedy else 0
    )


def _count_matches(
    guesses: list[np.ndarray], feeds: list[np.ndarray]
) -> tuple[list[int], list[int]]:
    """The number of tokens that were guessed of each request, and the number of guesses that the
    text went on with."""
    nums = [len(guess) for guess in guesses]
    pairs = zip(guesses, feeds, strict=True)
    return nums, [int((guess == feed[len(feed) - len(guess) :]).sum()) for guess, feed in pairs]
