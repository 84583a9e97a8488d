"""A smaller model as drafter: batched over requests, with its own KV cache in the same slots.

The draft model keeps, per slot, how many tokens of the committed text its KV holds. When it was not used for a while
that lags, and its next draft begins with a draft prefill: one pass over everything it missed. When its drafts were
rejected, the count falls back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from smartspec.control.records import UNLIMITED, DrafterSpec, DrafterView, FreeTests, StopRule
from smartspec.core.batch import NO_DRAFT, Batch, Draft, Verification, chain
from smartspec.core.blocks import PrefixCopy, Trim
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.pass_of_size import verification_pass
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.sampling.logit_rules import BANNED, broken_grammar
from smartspec.engine.sampling.sampler import sample_draft

MAX_PREFILL_CHUNK = 512
MAX_GUESSES = 8  # logits of prefilled tokens are only for learning: a few say enough


class DraftModel:
    """Drafts chains for several requests at once; one pass of the draft model per depth. Implements
    core.drafter.Drafter."""

    def __init__(self, runner: ModelRunner, num_slots: int, name: str = "draft model"):
        self.spec = DrafterSpec(name, has_passes=True)
        self.runner = runner
        self._num_seen = np.zeros(num_slots, dtype=np.int64)
        self._guessed = self._guessed_right = np.zeros(0, dtype=np.int64)  # of this step's draft prefill: int [R]

    def begin_step(self, batch: Batch) -> None:
        """Follow the block manager's memory operations and forget whatever was rolled back since the last step.

        Must run in every step: a later one could no longer tell rejected drafts from committed text.
        """
        self.runner.apply(batch.memory_ops)
        for op in batch.memory_ops:
            if isinstance(op, PrefixCopy):
                self._num_seen[op.target_slot] = min(self._num_seen[op.source_slot], op.num_tokens)
            elif isinstance(op, Trim):
                self._num_seen[op.slot] = min(self._num_seen[op.slot], op.num_tokens)
        for request in (*batch.decoding, *batch.prefill):
            self._num_seen[request.slot] = min(self._num_seen[request.slot], request.num_computed_tokens)
        self._guessed, self._guessed_right = np.zeros((2, len(batch.decoding)), dtype=np.int64)

    @property
    def profile_key(self) -> list:
        return self.runner.loaded.profile_key

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        return verification_pass(self.runner, num_rows, num_new, context)

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        """Drafts of any length; the lag of its KV."""
        lag = np.array([r.num_tokens - 1 - self._num_seen[r.slot] for r in batch.decoding], dtype=np.int64)
        return DrafterView(np.full(len(lag), UNLIMITED), lag=lag)

    def draft(self, batch: Batch, lengths: np.ndarray, stop: StopRule | None = None) -> list[Draft]:
        """Draft lengths[i] tokens after the text of row i (int [R]), fewer where stop says so; a row of length 0 costs
        nothing."""
        requests = batch.decoding
        made = [_Row([], [], []) for _ in requests]
        active = np.flatnonzero(lengths > 0)
        feeds = {i: self._prefill(requests[i]) for i in active.tolist()}
        for depth in range(int(max(lengths, default=0))):
            rows = active.tolist()
            logits, guesses = self._pass([requests[i] for i in rows], [feeds[i] for i in rows], depth)
            if depth == 0:
                counts = _count_matches(guesses, [feeds[i] for i in rows])
                self._guessed[rows], self._guessed_right[rows] = counts
            broken = broken_grammar([requests[i] for i in rows], [made[i].token_ids for i in rows])
            if broken is not None:
                can_go_on = ~broken.all(dim=1)  # else the grammar is too complex to look ahead in: the draft ends here
                active = active[can_go_on.numpy()]
                if not (rows := active.tolist()):
                    break
                logits = logits[can_go_on.to(logits.device)]
                logits = logits.masked_fill(broken[can_go_on].to(logits.device), BANNED)
            drawn, draft_probs = sample_draft(logits, [requests[i] for i in rows], depth)
            confidence = _confidence(logits, draft_probs)
            for i, *entry in zip(rows, drawn.tolist(), draft_probs, confidence.tolist(), strict=True):
                made[i].append(*entry)
                feeds[i] = np.array(entry[:1], dtype=np.int32)
            is_done = lengths[active] == depth + 1
            if stop is not None:
                is_done |= np.asarray(stop(depth, active, confidence, _entropy(logits, draft_probs)), dtype=bool)
            active = active[~is_done]
            if not len(active):
                break
        return [row.draft() for row in made]

    def observe(
        self,
        batch: Batch,
        verified: np.ndarray,
        decoding: Sequence[Verification],
        prefill: Sequence[Verification | None],
    ) -> FreeTests:
        """What it guessed in this step's draft prefill."""
        return FreeTests(np.zeros_like(verified), self._guessed, self._guessed_right)

    def _prefill(self, request: Request) -> np.ndarray:
        """Feed all but the last chunk of what the model's KV lacks; returns that last chunk."""
        missing = request.token_ids[self._num_seen[request.slot] :]
        while len(missing) > MAX_PREFILL_CHUNK:
            chunk, missing = missing[:MAX_PREFILL_CHUNK], missing[MAX_PREFILL_CHUNK:]
            self.runner.forward([Segment(request.slot, int(self._num_seen[request.slot]), chunk, num_logits=0)])
            self._num_seen[request.slot] += len(chunk)
        return missing

    def _pass(
        self, requests: list[Request], feeds: list[np.ndarray], depth: int
    ) -> tuple[torch.Tensor, list[np.ndarray]]:
        """Logits after what is fed, [n, V]; in the first pass also, per request, what the model would have guessed for
        the last tokens of its draft prefill."""
        num_logits = [1] * len(feeds)
        if depth == 0:
            num_logits = [1 + _num_guesses(request, feed) for request, feed in zip(requests, feeds, strict=True)]
        segments = []
        for request, feed, num in zip(requests, feeds, num_logits, strict=True):
            segments.append(Segment(request.slot, int(self._num_seen[request.slot]), feed, num))
            self._num_seen[request.slot] += len(feed)
        logits = self.runner.forward(segments)
        if sum(num_logits) == len(feeds):
            return logits, [np.empty(0, dtype=np.int64)] * len(feeds)
        ends = np.cumsum(num_logits)
        token_ids = logits.argmax(dim=-1).cpu().numpy()
        guesses = [token_ids[end - num : end - 1] for end, num in zip(ends, num_logits, strict=True)]
        return logits[torch.from_numpy(ends - 1).to(logits.device)], guesses


@dataclass
class _Row:
    """A draft in the making."""

    token_ids: list[int]
    probs: list[torch.Tensor | None]
    confidence: list[float]

    def append(self, token_id: int, probs: torch.Tensor | None, confidence: float) -> None:
        self.token_ids.append(token_id)
        self.probs.append(probs)
        self.confidence.append(confidence)

    def draft(self) -> Draft:
        if not self.token_ids:
            return NO_DRAFT
        # A greedy request's draft is a point mass; a sampled one carries the distributions it was drawn from.
        probs = None if self.probs[0] is None else torch.stack(self.probs)
        return chain(np.array(self.token_ids, dtype=np.int32), probs=probs, confidence=np.array(self.confidence))


def _num_guesses(request: Request, feed: np.ndarray) -> int:
    """Tokens of this feed whose guess is an observation: emitted ones (a prompt is not the target's), and only of
    greedy requests (a sampled token is a random draw)."""
    return min(len(feed) - 1, request.num_output_tokens, MAX_GUESSES) if request.params.greedy else 0


def _count_matches(guesses: list[np.ndarray], feeds: list[np.ndarray]) -> tuple[list[int], list[int]]:
    """Of each request: how many tokens were guessed, and how many of the guesses were what the text went on with."""
    nums = [len(guess) for guess in guesses]
    pairs = zip(guesses, feeds, strict=True)
    return nums, [int((guess == feed[len(feed) - len(guess) :]).sum()) for guess, feed in pairs]


def _confidence(logits: torch.Tensor, draft_probs: list[torch.Tensor | None]) -> np.ndarray:
    """Largest probability of each row's distribution, float [n]: the one drawn from; where greedy, the model's own."""
    confidence = torch.exp(logits.amax(dim=-1).float() - torch.logsumexp(logits.float(), dim=-1)).cpu().numpy()
    for row, probs in enumerate(draft_probs):
        if probs is not None:
            confidence[row] = float(probs.max())
    return confidence


def _entropy(logits: torch.Tensor, draft_probs: list[torch.Tensor | None]) -> np.ndarray:
    """Entropy of the same distributions in nats, float [n]."""
    rows = [torch.softmax(row.float(), dim=-1) if p is None else p for row, p in zip(logits, draft_probs, strict=True)]
    return torch.special.entr(torch.stack(rows)).sum(dim=-1).cpu().numpy()
