"""vLLM's requests as the controller sees them: who decodes in the next step, and what prefill there will be."""

from dataclasses import dataclass
from itertools import islice

import numpy as np

# What callers may ask for in `vllm_xargs` (`SamplingParams.extra_args`).
MAX_DRAFT_TOKENS, WEIGHT = "smartspec_max_draft_tokens", "smartspec_weight"


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
        return Prefill(
            num_prefills=len(chunks),
            prefill_tokens=sum(fed for _, fed in chunks),
            prefill_context_tokens=sum(before + fed for before, fed in chunks),
            prefill_attended_tokens=float(sum(fed * (before + (fed + 1) / 2) for before, fed in chunks)),
        )


def uncomputed(request) -> int:
    """Tokens of the text that are to be fed: 1 for a request that decodes. Async placeholders count as text."""
    return request.num_tokens + request.num_output_placeholders - request.num_computed_tokens


def decoding(scheduler) -> list:
    """The running requests that feed one token in the next step, in the scheduler's order."""
    return [request for request in scheduler.running if uncomputed(request) == 1]


def expected_prefill(scheduler, num_decoding: int) -> Prefill:
    """What vLLM will probably prefill in the next step: it has not decided yet. Cached prefixes are not seen."""
    budget = scheduler.max_num_scheduled_tokens - num_decoding
    free_places = max(scheduler.max_num_running_reqs - len(scheduler.running), 0)
    waiting = [(0, request.num_tokens) for request in islice(scheduler.waiting, free_places)]
    running = [(r.num_computed_tokens, uncomputed(r)) for r in scheduler.running if uncomputed(r) > 1]
    chunks = []
    for before, wanted in running + waiting:
        if budget <= 0:
            break
        chunks.append((before, min(wanted, budget)))
        budget -= wanted
    return Prefill.of(chunks)


def longest_draft(request, max_draft_tokens: int, max_model_len: int) -> int:
    """Most draft tokens that can be of use to a request: what it still emits, the model's length, what was asked."""
    remaining = request.max_tokens - request.num_output_tokens - 1
    asked = _asked(request, MAX_DRAFT_TOKENS, max_draft_tokens)
    return int(max(min(max_draft_tokens, asked, remaining, max_model_len - request.num_tokens - 1), 0))


def weight(request) -> float:
    """What a token of this request is worth, 1 unless asked for."""
    return float(_asked(request, WEIGHT, 1.0))


def free_kv_tokens(scheduler) -> int:
    """Tokens that fit into KV blocks nobody holds."""
    cache = scheduler.cache_config
    return int((1.0 - scheduler.get_kv_cache_usage()) * cache.num_gpu_blocks) * cache.block_size


def _asked(request, name: str, default: float) -> float:
    """A number a caller gave; anything else counts as not asked."""
    parameters = request.sampling_params
    value = (getattr(parameters, "extra_args", None) or {}).get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value) and value >= 0
    return value if is_number else default
