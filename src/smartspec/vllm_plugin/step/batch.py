"""vLLM's requests as the controller sees them: those that decode in the next step, and its
prefill."""

from dataclasses import dataclass
from itertools import islice

import numpy as np


@dataclass(frozen=True)
class Prefill:
    """The prefill of a step."""

    num_prefills: int = 0  # requests
    prefill_tokens: int = 0  # that they are fed
    prefill_context_tokens: int = 0  # sum of their contexts at its end
    prefill_attended_tokens: float = 0.0  # sum over fed tokens of the tokens that each attends to

    @staticmethod
    def of(chunks: list[tuple[int, int]]) -> "Prefill":
        """Return the prefill of such chunks: (tokens before, tokens fed) of each request."""
        return Prefill(
            num_prefills=len(chunks),
            prefill_tokens=sum(fed for _, fed in chunks),
            prefill_context_tokens=sum(before + fed for before, fed in chunks),
            prefill_attended_tokens=float(
                sum(fed * (before + (fed + 1) / 2) for before, fed in chunks)
            ),
        )


NO_PREFILL = Prefill()


def num_uncomputed(request) -> int:
    """The tokens of a text that are to be fed: 1 for a request that decodes. Async placeholders
    count as text."""
    return request.num_tokens + request.num_output_placeholders - request.num_computed_tokens


def decoding_requests(scheduler) -> list:
    """Return the running requests that feed one token in the next step, in the scheduler's order.
    While a step runs, drafts that it verifies count as computed."""
    return [
        r
        for r in scheduler.running
        if r.num_tokens + r.num_output_placeholders <= r.num_computed_tokens + 1
    ]


def expected_prefill(scheduler, num_decoding: int) -> Prefill:
    """Return the likely prefill of the next step, which is not decided yet. Cached prefixes are
    unknown."""
    num_running = len(scheduler.running)
    if num_running == num_decoding and not scheduler.waiting:
        return NO_PREFILL
    budget = scheduler.max_num_scheduled_tokens - num_decoding
    free_places = max(scheduler.max_num_running_reqs - num_running, 0)
    waiting = [(0, request.num_tokens) for request in islice(scheduler.waiting, free_places)]
    running = [
        (r.num_computed_tokens, num_uncomputed(r))
        for r in scheduler.running
        if num_uncomputed(r) > 1
    ]
    chunks = []
    for before, length in running + waiting:
        if budget <= 0:
            break
        chunks.append((before, min(length, budget)))
        budget -= length
    return Prefill.of(chunks)


def useful_lengths(
    rows: list, context_tokens: np.ndarray, max_model_len: int, *, has_end: bool
) -> np.ndarray:
    """Return the draft tokens that fit into the model's length and into the rest of the answers:
    int [R]. context_tokens: int [R], computed tokens of rows that decode. has_end: false lets
    drafts reach beyond the answers, as vLLM's own do, so that all have one length."""
    # Known tokens but one are computed, and placeholders of steps under way.
    known = (
        context_tokens
        + 1
        - np.array([request.num_output_placeholders for request in rows], dtype=np.int64)
    )
    ends: np.ndarray | int = max_model_len
    if has_end:
        # callers may want 10**30
        answers = [r.num_prompt_tokens + min(r.max_tokens, max_model_len) for r in rows]
        ends = np.minimum(ends, np.array(answers, dtype=np.int64))
    return np.maximum(ends - known - 1, 0)


def free_kv_tokens(scheduler) -> int:
    """The tokens that fit into the free KV blocks."""
    cache = scheduler.cache_config
    return int((1.0 - scheduler.get_kv_cache_usage()) * cache.num_gpu_blocks) * cache.block_size
