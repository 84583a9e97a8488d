"""The scheduler, which says who computes what in a step: running requests first, then prefill
chunks, then new requests, under a token budget.

There is no prefill or decode phase (the idea of vLLM's v1 scheduler): each request has computed
tokens and tokens still to compute, and the scheduler hands out tokens so that the first catches up
with the second.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from smartspec.control import BatchView, ClassIds, DrafterQuery, DrafterView, Plan
from smartspec.control.records import UNLIMITED
from smartspec.core.batch import Batch
from smartspec.core.blocks import BlockManager, Prefix, common_prefix
from smartspec.core.fair_queue import FairQueue
from smartspec.core.prefill_room import PrefillRoom
from smartspec.core.request import Request, RequestStatus
from smartspec.core.speculation import NO_OPTIONS

# Share of the token limit (1 / 8) that drafts may take even in a step that prefill has filled.
# Under load nearly every step is full of prefill; a decoding request waits in it much longer for
# its token than a few draft tokens take.
ROOM_FOR_DRAFTS = 8
# Waiting requests that a step may pass over: each costs a look for its prefix.
MAX_PASSED_OVER = 32


class Scheduler:
    """Clients are served in turn (core.fair_queue), one client's requests in order; a request that
    was preempted comes back first.

    max_batched_tokens: tokens fed per step. Decoding requests are never left out; the rest goes to
    prefill, but for as many tokens as the last mixed prefill-decode batch had drafts.
    max_draft_tokens: K, most draft tokens of a request. long_prefill_token_threshold: as in vLLM, a
    prompt with more tokens left is long, and takes no more of a step; of several long ones, the
    first does. A request that is alone takes all; None: no prompt is long.
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_batched_tokens: int,
        max_model_len: int,
        max_draft_tokens: int,
        long_prefill_token_threshold: int | None = None,
    ):
        self.blocks = blocks
        self.max_batched_tokens = max_batched_tokens
        self.max_model_len = max_model_len
        self.max_draft_tokens = max_draft_tokens
        self.long_prefill_token_threshold = long_prefill_token_threshold or UNLIMITED
        self.waiting = FairQueue()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._class_ids = ClassIds()
        self._drafts_in_mixed_step = 0  # draft tokens verified in the last mixed step

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError when it could never run."""
        if request.max_num_tokens > self.max_model_len:
            raise ValueError(
                f"prompt ({request.num_prompt_tokens} tokens) and max_tokens "
                f"({request.params.max_tokens}) exceed the context of {self.max_model_len} tokens: "
                "shorten the prompt or lower max_tokens"
            )
        num_blocks = self.blocks.blocks_for(request.max_num_tokens)
        if num_blocks > self.blocks.num_blocks:
            kv_tokens = self.blocks.num_blocks * self.blocks.block_size
            raise ValueError(
                f"prompt ({request.num_prompt_tokens} tokens) and max_tokens "
                f"({request.params.max_tokens}) need more KV memory than there is ({kv_tokens} "
                "tokens): lower max_tokens or start with a larger --kv-tokens"
            )
        request.class_id = self._class_ids.of(
            request.speculation.workload_class, request.origin.client
        )
        self.waiting.add(request)

    def schedule(self) -> Batch:
        """Choose the ordinary tokens of the next step and hold the blocks they need."""
        self._make_room_for_others()
        decoding, preempted = self._hold_blocks_of_decodes()
        budget = self.max_batched_tokens - len(decoding)
        budget -= min(self._drafts_in_mixed_step, budget // 2)
        is_alone = len(self.running) + len(self.waiting) == 1
        room = PrefillRoom(budget, UNLIMITED if is_alone else self.long_prefill_token_threshold)
        prefill = self._continue_prefills(room) if len(self.running) > len(decoding) else {}
        if not preempted:
            self._admit(room, decoding, prefill)
        return Batch(
            decoding=tuple(decoding),
            prefill=tuple(prefill),
            num_prefill_tokens=tuple(prefill.values()),
            memory_ops=self.blocks.take_memory_ops() if decoding or prefill else (),
        )

    def view(self, batch: Batch, queries: tuple[DrafterQuery, ...], now: float) -> BatchView:
        """The facts that the controller may know. queries: of the drafters. now: seconds; see
        BatchView."""
        rows = batch.decoding
        # Not below 0: of a prompt that only is to be scored, no token may come.
        most = [
            min(max(0, r.max_num_tokens - r.num_tokens - 1), self.max_draft_tokens) for r in rows
        ]
        columns = [r.request_id for r in rows], [r.num_computed_tokens for r in rows], most
        request_ids, context_tokens, caps = np.array(columns, dtype=np.int64)
        caps, budget = self._fit_kv(rows, caps)
        options: Mapping[str, Any] = _no_options(len(rows))
        if any([r.speculation is not NO_OPTIONS for r in rows]):
            caps, options = _request_options(rows, caps)
        chunks = [
            (n, r.num_computed_tokens + n)
            for r, n in zip(batch.prefill, batch.num_prefill_tokens, strict=True)
        ]
        if chunks:
            room = self.max_batched_tokens - len(rows) - sum(num_tokens for num_tokens, _ in chunks)
            # They get their share even where prefill has left no room: the next step will leave it.
            budget = min(budget, max(room, self.max_batched_tokens // ROOM_FOR_DRAFTS))
        return BatchView(
            request_ids=request_ids,
            context_tokens=context_tokens,
            row_caps=caps,
            num_prefills=len(chunks),
            prefill_tokens=sum(num_tokens for num_tokens, _ in chunks),
            prefill_context_tokens=sum(context for _, context in chunks),
            prefill_attended_tokens=sum(n * (context - (n - 1) / 2) for n, context in chunks),
            draft_token_budget=budget,
            num_waiting=min(len(self.waiting), self.blocks.num_available_slots),
            now=now,
            queries=tuple([partial(_cut, query, caps) for query in queries]),
            **options,
        )

    def reserve(self, batch: Batch, plan: Plan) -> Plan:
        """Hold lookahead blocks for the planned drafts; shorten what does not fit. Never preempts a
        request."""
        lengths = plan.lengths.tolist()
        is_cut = False
        for row, request in enumerate(batch.decoding):
            if lengths[row] and not self.blocks.grow(
                request.slot, request.num_tokens + lengths[row]
            ):
                lengths[row] = max(0, self.blocks.room_for(request.slot) - request.num_tokens)
                self.blocks.grow(request.slot, request.num_tokens + lengths[row])
                is_cut = True
        return replace(plan, lengths=np.array(lengths, dtype=np.int64)) if is_cut else plan

    def remember_drafts(self, batch: Batch, verified: np.ndarray) -> None:
        """The next mixed step leaves room for as many draft tokens (int [R]) as this one, if it has
        prefill."""
        if batch.prefill:
            self._drafts_in_mixed_step = int(verified.sum())

    def settle(self, request: Request) -> None:
        """Give back lookahead blocks that rejected drafts no longer need; release the request if it
        finished."""
        if request.finish_reason is not None:
            self._release(request, RequestStatus.FINISHED)
        else:
            self.blocks.shrink(request.slot, request.num_tokens)

    def start_over(self) -> None:
        """A step has failed, so its changes of the KV may be incomplete. Running requests are
        computed anew, and no cached prefix is kept."""
        self.waiting.look_again()  # the step may have failed while some were passed over
        for request in reversed(list(self.running)):
            self._preempt(request)
        self.blocks.reset()

    def remove(self, request_id: int) -> Request | None:
        """Forget a request wherever it is; None if it is not here (any more)."""
        for request in self.running:
            if request.request_id == request_id:
                self._release(request, RequestStatus.FINISHED)
                return request
        waiting = self.waiting.remove(request_id)
        if waiting is not None:
            waiting.status = RequestStatus.FINISHED
        return waiting

    def _fit_kv(self, rows: tuple[Request, ...], caps: np.ndarray) -> tuple[np.ndarray, int]:
        """caps (int [R]) cut to the KV each row could get, and the draft tokens there is KV for in
        all."""
        if self.blocks.num_available_blocks >= len(rows) * self.blocks.blocks_for(
            self.max_draft_tokens
        ):
            return caps, UNLIMITED
        free = self.blocks.num_available_blocks * self.blocks.block_size
        in_own_blocks = np.array(
            [self.blocks.room_for(r.slot) - free - r.num_tokens for r in rows], dtype=np.int64
        )
        return np.minimum(caps, in_own_blocks + free), int(in_own_blocks.sum()) + free

    def _hold_blocks_of_decodes(self) -> tuple[list[Request], bool]:
        """Every decoding request needs room for its newest token; the latest arrivals make room.

        Returns the decoding requests, and whether any was preempted to make room.
        """
        decoding = [r for r in self.running if r.num_uncomputed_tokens == 1]
        preempted = False
        for request in decoding:
            while request.status is RequestStatus.RUNNING and not self.blocks.grow(
                request.slot, request.num_tokens
            ):
                self._preempt(self.running[-1])
                preempted = True
        return [
            r for r in decoding if r.status is RequestStatus.RUNNING
        ] if preempted else decoding, preempted

    def _continue_prefills(self, room: PrefillRoom) -> dict[Request, int]:
        """Chunks of prompts that are under way, in order of arrival; their blocks are held."""
        under_way = [request for request in self.running if request.num_uncomputed_tokens > 1]
        chunks = {request: room.take(request) for request in under_way}
        return {request: chunk for request, chunk in chunks.items() if chunk}

    def _admit(
        self, room: PrefillRoom, decoding: list[Request], prefill: dict[Request, int]
    ) -> None:
        """Start waiting requests while there is budget, a slot, and KV for their whole text so far.
        Those whose prefix is being computed, and long prompts beside another one, are passed over.
        """
        num_passed_over = 0
        while num_passed_over < MAX_PASSED_OVER and room.tokens > 0:
            request = self.waiting.peek()
            if request is None or not self._fits(request):
                break
            candidates = self._prefix_candidates(request)
            prefix = self._longest_prefix(request, candidates)
            num_uncomputed = request.num_tokens - (0 if prefix is None else prefix.num_tokens)
            if not room.has_any_for(num_uncomputed) or self._worth_waiting_for(
                request, prefix, candidates
            ):
                self.waiting.pass_over()
                num_passed_over += 1
                continue
            self._start(self.waiting.pop(), prefix)
            chunk = room.take(request)
            if request.num_uncomputed_tokens == 1:
                decoding.append(request)
            else:
                prefill[request] = chunk
        self.waiting.look_again()

    def _fits(self, request: Request) -> bool:
        """One block of headroom per running request, or the newcomer would be preempted right
        away."""
        num_blocks = self.blocks.blocks_for(request.num_tokens) + len(self.running)
        return (
            self.blocks.num_available_slots > 0 and num_blocks <= self.blocks.num_available_blocks
        )

    def _make_room_for_others(self) -> None:
        """A client that has nothing running does not wait for one that has several requests. Of the
        client that has most for its share, the latest request is preempted."""
        newcomer = self.waiting.peek()
        if newcomer is None or self._fits(newcomer):
            return
        origin = newcomer.origin
        num_running = Counter(request.origin.client for request in self.running)
        victims = [
            request for request in reversed(self.running) if num_running[request.origin.client] > 1
        ]
        if num_running[origin.client] or not victims:
            return
        self.waiting.pop()
        self._preempt(
            max(
                victims,
                key=lambda request: num_running[request.origin.client] / request.origin.share,
            )
        )
        self.waiting.put_back(newcomer)

    def _start(self, request: Request, prefix: Prefix | None) -> None:
        request.slot = self.blocks.acquire(prefix, request.num_tokens)
        # Of all chunks: what starts later must not take the blocks of a prompt under way.
        grown = self.blocks.grow(request.slot, request.num_tokens)
        assert grown, "blocks were checked before"
        request.num_computed_tokens = 0 if prefix is None else prefix.num_tokens
        if not request.num_preemptions:  # later it may find what it computed itself
            request.num_cached_tokens = request.num_computed_tokens
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        if not request.num_preemptions:
            self.waiting.charge(request.origin, request.num_prompt_tokens)

    def _prefix_candidates(self, request: Request) -> list[Request]:
        """Running requests of its salt whose text begins with the same token: only these can share
        a prefix. Often there are none."""
        first, salt = request.tokens.item(0), request.origin.cache_salt
        return [
            other
            for other in self.running
            if other.tokens.item(0) == first and other.origin.cache_salt == salt
        ]

    def _longest_prefix(self, request: Request, candidates: list[Request]) -> Prefix | None:
        """The longest reusable prefix in any slot, running or cached; the last token is always
        computed anew, and so is everything where the prompt's log-probabilities are wanted."""
        if request.num_unscored_tokens:
            return None
        token_ids = request.token_ids[:-1]
        best = self.blocks.find_cached_prefix(token_ids, request.origin.cache_salt)
        for other in candidates:
            num_shared = common_prefix(other.tokens[: other.num_computed_tokens], token_ids)
            if num_shared >= self.blocks.block_size and (
                best is None or num_shared > best.num_tokens
            ):
                best = Prefix(other.slot, num_shared, cached=False)
        return best

    def _worth_waiting_for(
        self, request: Request, prefix: Prefix | None, candidates: list[Request]
    ) -> bool:
        """True if a running prefill is about to compute a longer common prefix (n > 1, shared
        prompts)."""
        num_tokens = 0 if prefix is None else prefix.num_tokens
        return not request.num_unscored_tokens and any(
            other.num_uncomputed_tokens > 1
            and common_prefix(other.token_ids, request.token_ids[:-1])
            >= num_tokens + self.blocks.block_size
            for other in candidates
        )

    def _preempt(self, request: Request) -> None:
        """Give back the request's memory; it will be computed anew (or found again among the cached
        prefixes)."""
        self._release(request, RequestStatus.WAITING)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.put_back(request)

    def _release(self, request: Request, status: RequestStatus) -> None:
        self.running.remove(request)
        if status is RequestStatus.FINISHED:
            self.waiting.charge(request.origin, request.num_output_tokens)
        if request.error is None:
            text = request.tokens[: request.num_computed_tokens]
            self.blocks.release(request.slot, text, request.origin.cache_salt)
        else:
            self.blocks.discard(request.slot)
        request.slot = None  # type: ignore[assignment]
        request.status = status


def _cut(query: DrafterQuery, caps: np.ndarray, is_queried: bool) -> DrafterView:
    """The query's finding, with drafts of at most these lengths: int [R]."""
    drafter = query(is_queried)
    return (
        replace(drafter, lengths=np.minimum(drafter.lengths, caps))
        if (drafter.lengths > caps).any()
        else drafter
    )


@lru_cache
def _no_options(num_rows: int) -> Mapping[str, Any]:
    """The result of _request_options where no request has any options."""
    return {"weights": np.ones(num_rows), "class_ids": np.zeros(num_rows, dtype=np.int64)}


def _request_options(
    rows: tuple[Request, ...], caps: np.ndarray
) -> tuple[np.ndarray, dict[str, Any]]:
    """caps (int [R]) cut to what requests allow, and their other options, by name in BatchView."""
    options = [request.speculation for request in rows]
    wanted = [
        UNLIMITED if o.max_draft_tokens is None else min(o.max_draft_tokens, UNLIMITED)
        for o in options
    ]
    targets = [np.inf if o.tpot_target_seconds is None else o.tpot_target_seconds for o in options]
    return np.minimum(caps, wanted), {
        "weights": np.array([o.weight for o in options]),
        "class_ids": np.array([request.class_id for request in rows], dtype=np.int64),
        "extras": {"tpot_targets": np.array(targets)},
    }
