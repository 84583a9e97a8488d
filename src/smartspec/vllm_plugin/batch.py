"""vLLM's requests as the controller sees them: who decodes in the next step, and what prefill there will be."""

from dataclasses import dataclass
from itertools import islice

import numpy as np


@dataclass(frozen=True)
class Prefill:
    """The prefill of a step: requests, tokens they are fed, sum of their contexts at its end, sum over fed tokens of
    what each attends to."""

    num_prefills: int = 0
    prefill_tokens: int = 0
    prefill_context_tokens: int = 0
    prefill_attended_tokens: float = 0.0

    @staticmethod
    def of(chunks: list[tuple[int, int]]) -> "Prefill":
        """chunks: (tokens before, tokens fed) of each request."""
        if not chunks:
            return NO_PREFILL
        return Prefill(
            num_prefills=len(chunks),
            prefill_tokens=sum(fed for _, fed in chunks),
            prefill_context_tokens=sum(before + fed for before, fed in chunks),
            prefill_attended_tokens=float(sum(fed * (before + (fed + 1) / 2) for before, fed in chunks)),
        )


NO_PREFILL = Prefill()


def uncomputed(request) -> int:
    """Tokens of the text that are to be fed: 1 for a request that decodes. Async placeholders count as text."""
    return request.num_tokens + request.num_output_placeholders - request.num_computed_tokens


def decoding(scheduler) -> list:
    """The running requests that feed one token in the next step, in the scheduler's order. While a step runs, drafts
    that it verifies count as computed."""
    return [r for r in scheduler.running if r.num_tokens + r.num_output_placeholders <= r.num_computed_tokens + 1]


def expected_prefill(scheduler, num_decoding: int) -> Prefill:
    """The prefill that vLLM will probably do in the next step: it is not decided yet. Cached prefixes are unknown."""
    num_running = len(scheduler.running)
    if num_running == num_decoding and not scheduler.waiting:
        return NO_PREFILL
    budget = scheduler.max_num_scheduled_tokens - num_decoding
    free_places = max(scheduler.max_num_running_reqs - num_running, 0)
    waiting = [(0, request.num_tokens) for request in islice(scheduler.waiting, free_places)]
    running = [(r.num_computed_tokens, uncomputed(r)) for r in scheduler.running if uncomputed(r) > 1]
    chunks = []
    for before, wanted in running + waiting:
        if budget <= 0:
            break
        chunks.append((before, min(wanted, budget)))
        budget -= wanted
    return Prefill.of(chunks)


def longest_useful(rows: list, context_tokens: np.ndarray, max_model_len: int, *, until_they_end: bool) -> np.ndarray:
    """Draft tokens that fit into the model's length and into what requests may still emit: int [R].
    context_tokens: int [R], computed ones of rows that decode. until_they_end: false lets drafts reach beyond that, as
    vLLM's own do, so that all have one length."""
    # Known tokens but one are computed, and placeholders of steps under way.
    known = context_tokens + 1 - np.array([request.num_output_placeholders for request in rows], dtype=np.int64)
    ends: np.ndarray | int = max_model_len
    if until_they_end:
        wanted = [r.num_prompt_tokens + min(r.max_tokens, max_model_len) for r in rows]  # callers may want 10**30
        ends = np.minimum(ends, np.array(wanted, dtype=np.int64))
    return np.maximum(ends - known - 1, 0)


def free_kv_tokens(scheduler) -> int:
    """Tokens that fit into the free KV blocks."""
    cache = scheduler.cache_config
    return int((1.0 - scheduler.get_kv_cache_usage()) * cache.num_gpu_blocks) * cache.block_size
