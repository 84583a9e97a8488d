"""A smaller model as drafter: batched over requests, with its own KV cache in the same slots.

The draft model keeps, per slot, how many tokens of the committed text its KV holds. When it was not asked for a while
it catches up in one pass over everything it missed; when its drafts were rejected, the count falls back.
"""

import numpy as np
import torch

from smartspec.core.batch import NO_DRAFT, Batch, Draft
from smartspec.core.blocks import PrefixCopy, Trim
from smartspec.core.request import Request
from smartspec.engine.attention import Segment
from smartspec.engine.model_runner import ModelRunner
from smartspec.engine.sampling import sample_draft

MAX_CATCH_UP_CHUNK = 512


class DraftModel:
    """Drafts chains for several requests at once; one pass of the draft model per depth."""

    def __init__(self, runner: ModelRunner, num_slots: int):
        self.runner = runner
        self._num_seen = np.zeros(num_slots, dtype=np.int64)

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

    def unseen_tokens(self, requests: tuple[Request, ...]) -> np.ndarray:
        """int64 [R]: committed tokens to catch up on, the newest one excluded."""
        return np.array([r.num_tokens - 1 - self._num_seen[r.slot] for r in requests], dtype=np.int64)

    def propose(self, requests: tuple[Request, ...], lengths: np.ndarray) -> list[Draft]:
        """Draft lengths[i] tokens behind the text of requests[i] (int [R]); rows with length 0 cost nothing."""
        active = [i for i in range(len(requests)) if lengths[i] > 0]
        token_ids: list[list[int]] = [[] for _ in requests]
        probs: list[list[torch.Tensor | None]] = [[] for _ in requests]
        feeds = {i: self._catch_up(requests[i]) for i in active}
        for depth in range(int(max(lengths, default=0))):
            active = [i for i in active if lengths[i] > depth]
            drawn, draft_probs = self._pass(requests, active, feeds, depth)
            for i, token_id, row_probs in zip(active, drawn.tolist(), draft_probs, strict=True):
                token_ids[i].append(token_id)
                probs[i].append(row_probs)
                feeds[i] = np.array([token_id], dtype=np.int32)
        return [_draft(ids, rows) for ids, rows in zip(token_ids, probs, strict=True)]

    def _catch_up(self, request: Request) -> np.ndarray:
        """Feed all but the last chunk of what the model has not seen; returns that last chunk."""
        unseen = request.token_ids[self._num_seen[request.slot] :]
        while len(unseen) > MAX_CATCH_UP_CHUNK:
            chunk, unseen = unseen[:MAX_CATCH_UP_CHUNK], unseen[MAX_CATCH_UP_CHUNK:]
            self.runner.forward([Segment(request.slot, int(self._num_seen[request.slot]), chunk, num_logits=0)])
            self._num_seen[request.slot] += len(chunk)
        return unseen

    def _pass(self, requests: tuple[Request, ...], active: list[int], feeds: dict[int, np.ndarray], depth: int):
        segments = []
        for i in active:
            slot = requests[i].slot
            segments.append(Segment(slot, int(self._num_seen[slot]), feeds[i], num_logits=1))
            self._num_seen[slot] += len(feeds[i])
        logits = self.runner.forward(segments)
        positions = np.array([requests[i].num_tokens + depth for i in active], dtype=np.int64)
        return sample_draft(logits, [requests[i] for i in active], positions)


def _draft(token_ids: list[int], probs: list[torch.Tensor | None]) -> Draft:
    if not token_ids:
        return NO_DRAFT
    # A greedy request's draft is a point mass; a sampled one carries the distributions it was drawn from.
    return Draft(np.array(token_ids, dtype=np.int32), probs=None if probs[0] is None else torch.stack(probs))
