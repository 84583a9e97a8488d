"""Who computes what in a step: running requests first, then prefill chunks, then new requests, under a token budget.

There is no prefill or decode phase (the idea of vLLM's v1 scheduler): each request has computed tokens and tokens still
to compute, and the scheduler hands out tokens so that the first catches up with the second.
"""

from collections import deque
from dataclasses import replace

import numpy as np

from smartspec.control.records import BatchView, DraftPlan, Offers
from smartspec.core.batch import Batch, Draft
from smartspec.core.blocks import BlockManager, Prefix, common_prefix
from smartspec.core.request import Request, RequestStatus


class Scheduler:
    """First come, first served; a request that was preempted comes back first.

    max_batched_tokens: ordinary tokens fed per step (decoding requests are never left out; the rest goes to prefill).
    max_draft_tokens: K, the most draft tokens a request may carry.
    """

    def __init__(self, blocks: BlockManager, *, max_batched_tokens: int, max_model_len: int, max_draft_tokens: int):
        self.blocks = blocks
        self.max_batched_tokens = max_batched_tokens
        self.max_model_len = max_model_len
        self.max_draft_tokens = max_draft_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError when it could never run."""
        if request.max_num_tokens > self.max_model_len:
            raise ValueError(
                f"prompt ({request.num_prompt_tokens} tokens) and max_tokens ({request.params.max_tokens}) exceed the "
                f"context of {self.max_model_len} tokens: shorten the prompt or lower max_tokens"
            )
        num_blocks = self.blocks.blocks_for(request.max_num_tokens)
        if num_blocks > self.blocks.num_blocks:
            kv_tokens = self.blocks.num_blocks * self.blocks.block_size
            raise ValueError(
                f"prompt ({request.num_prompt_tokens} tokens) and max_tokens ({request.params.max_tokens}) need more "
                f"KV memory than there is ({kv_tokens} tokens): lower max_tokens or start with a larger --kv-tokens"
            )
        self.waiting.append(request)

    def schedule(self) -> Batch:
        """Choose the ordinary tokens of the next step and hold the blocks they need."""
        preempted = self._hold_blocks_of_decodes()
        decoding = [r for r in self.running if r.num_uncomputed_tokens == 1]
        budget = self.max_batched_tokens - len(decoding)
        prefill = self._continue_prefills(budget)
        budget -= sum(prefill.values())
        if not preempted and len(prefill) == sum(r.num_uncomputed_tokens > 1 for r in self.running):
            self._admit(budget, decoding, prefill)
        return Batch(
            decoding=tuple(decoding),
            prefill=tuple(prefill),
            num_prefill_tokens=tuple(prefill.values()),
            memory_ops=self.blocks.take_memory_ops(),
        )

    def view(self, batch: Batch, offers: tuple[Draft, ...], unseen_tokens: np.ndarray, now: float) -> BatchView:
        """What the controller may know about the batch. unseen_tokens: int [R]; now: seconds; see BatchView."""
        rows = batch.decoding
        left = np.array([r.max_num_tokens - r.num_tokens - 1 for r in rows], dtype=np.int64)
        caps = np.minimum(left, self.max_draft_tokens)
        lengths = np.array([len(draft) for draft in offers], dtype=np.int64)
        evidence = np.array([draft.evidence for draft in offers], dtype=np.int64)
        chunks = [(n, r.num_computed_tokens + n) for r, n in zip(batch.prefill, batch.num_prefill_tokens, strict=True)]
        return BatchView(
            request_ids=np.array([r.request_id for r in rows], dtype=np.int64),
            context_tokens=np.array([r.num_computed_tokens for r in rows], dtype=np.int64),
            max_draft_tokens=caps,
            unseen_tokens=unseen_tokens,
            offers=Offers(lengths=np.minimum(lengths, caps), evidence=evidence),
            num_prefills=len(chunks),
            prefill_tokens=sum(num_tokens for num_tokens, _ in chunks),
            prefill_context_tokens=sum(context for _, context in chunks),
            prefill_attended_tokens=sum(n * (context - (n - 1) / 2) for n, context in chunks),
            now=now,
        )

    def reserve(self, batch: Batch, plan: DraftPlan) -> DraftPlan:
        """Hold lookahead blocks for the planned drafts; shorten what does not fit. Never preempts anybody."""
        lengths = plan.lengths.copy()
        for row, request in enumerate(batch.decoding):
            if lengths[row] > 0:
                room = self.blocks.room_for(request.slot) - request.num_tokens
                lengths[row] = max(0, min(lengths[row], room))
                self.blocks.grow(request.slot, request.num_tokens + int(lengths[row]))
        return replace(plan, lengths=lengths)

    def settle(self, request: Request) -> None:
        """Give back lookahead blocks that rejected drafts no longer need; release the request if it finished."""
        if request.finish_reason is not None:
            self._release(request, RequestStatus.FINISHED)
        else:
            self.blocks.shrink(request.slot, request.num_tokens)

    def remove(self, request_id: int) -> Request | None:
        """Forget a request wherever it is; None if it is not here (any more)."""
        for request in self.running:
            if request.request_id == request_id:
                self._release(request, RequestStatus.FINISHED)
                return request
        for request in self.waiting:
            if request.request_id == request_id:
                self.waiting.remove(request)
                request.status = RequestStatus.FINISHED
                return request
        return None

    def _hold_blocks_of_decodes(self) -> bool:
        """Every decoding request needs room for its newest token; the latest arrivals make room. True if any had to."""
        preempted = False
        for request in [r for r in self.running if r.num_uncomputed_tokens == 1]:
            while request.status is RequestStatus.RUNNING and not self.blocks.grow(request.slot, request.num_tokens):
                self._preempt(self.running[-1])
                preempted = True
        return preempted

    def _continue_prefills(self, budget: int) -> dict[Request, int]:
        """Chunks of prompts that are under way, in order of arrival, as many as the budget and the blocks allow."""
        chunks: dict[Request, int] = {}
        for request in [r for r in self.running if r.num_uncomputed_tokens > 1]:
            if request.status is not RequestStatus.RUNNING:
                continue
            chunk = min(request.num_uncomputed_tokens, budget)
            if chunk <= 0:
                break
            while not self.blocks.grow(request.slot, request.num_computed_tokens + chunk):
                if self.running[-1] is request:
                    return chunks
                self._preempt(self.running[-1])
            chunks[request] = chunk
            budget -= chunk
        return chunks

    def _admit(self, budget: int, decoding: list[Request], prefill: dict[Request, int]) -> None:
        """Start waiting requests while there is budget, a slot, and KV for their whole text so far."""
        while self.waiting and budget > 0 and self.blocks.num_available_slots:
            request = self.waiting[0]
            # One block of headroom per running request, or the newcomer would be preempted right away.
            num_blocks = self.blocks.blocks_for(request.num_tokens) + len(self.running)
            if num_blocks > self.blocks.num_available_blocks:
                return
            prefix = self._longest_prefix(request)
            if self._worth_waiting_for(request, prefix):
                return
            self.waiting.popleft()
            self._start(request, prefix)
            chunk = min(request.num_uncomputed_tokens, budget)
            grown = self.blocks.grow(request.slot, request.num_computed_tokens + chunk)
            assert grown, "blocks were checked before admission"
            budget -= chunk
            if request.num_uncomputed_tokens == 1:
                decoding.append(request)
            else:
                prefill[request] = chunk

    def _start(self, request: Request, prefix: Prefix | None) -> None:
        request.slot = self.blocks.acquire(prefix, request.num_tokens)
        request.num_computed_tokens = request.num_cached_tokens = 0 if prefix is None else prefix.num_tokens
        request.status = RequestStatus.RUNNING
        self.running.append(request)

    def _longest_prefix(self, request: Request) -> Prefix | None:
        """The longest reusable prefix in any slot, running or cached; the last token is always computed anew."""
        token_ids = request.token_ids[:-1]
        best = self.blocks.find_cached_prefix(token_ids)
        for other in self.running:
            num_shared = common_prefix(other.tokens[: other.num_computed_tokens], token_ids)
            if num_shared >= self.blocks.block_size and (best is None or num_shared > best.num_tokens):
                best = Prefix(other.slot, num_shared, cached=False)
        return best

    def _worth_waiting_for(self, request: Request, prefix: Prefix | None) -> bool:
        """True if a running prefill is about to compute a longer common prefix (n > 1, shared prompts)."""
        num_tokens = 0 if prefix is None else prefix.num_tokens
        return any(
            other.num_uncomputed_tokens > 1
            and common_prefix(other.token_ids, request.token_ids[:-1]) >= num_tokens + self.blocks.block_size
            for other in self.running
        )

    def _preempt(self, request: Request) -> None:
        """Give back the request's memory; it will be computed anew (or found again among the cached prefixes)."""
        self._release(request, RequestStatus.WAITING)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request, status: RequestStatus) -> None:
        self.running.remove(request)
        self.blocks.release(request.slot, request.tokens[: request.num_computed_tokens])
        request.slot = None
        request.status = status
