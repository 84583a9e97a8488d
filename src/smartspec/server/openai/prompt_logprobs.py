"""Log-probabilities of a prompt's tokens, by token id as vLLM writes `prompt_logprobs`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from smartspec.core.batch import TokenLogprobs
from smartspec.server.http.errors import APIError

LOWEST_LOGPROB = -9999.0  # JSON has no -inf
MAX_ENTRIES = 32_768  # of an answer: 2 MB


def check_num_entries(param: str, prompts: list[list[int]], n: int, num_top: int) -> None:
    """Raises APIError 400 where an answer would be too large. param: the field that requests it."""
    num_entries = sum(map(len, prompts)) * n * (1 + num_top)
    if num_entries > MAX_ENTRIES:
        raise APIError(
            400,
            f"{param} {num_top} of these prompts are {num_entries} entries, and an answer has at "
            f"most {MAX_ENTRIES}: request fewer alternatives, or send less in one call",
            param,
            "invalid_value",
        )


def prompt_json(
    token_ids: Sequence[int],
    found: Sequence[TokenLogprobs],
    num_top: int,
    decode: Callable[[list[int]], str],
) -> list[dict | None]:
    """Log-probabilities of every token of a prompt, with num_top alternatives; null for the first
    token, which has no context. found: those of the other tokens. Takes long for a long prompt:
    call it in a thread."""
    written: list[dict | None] = [None]
    for token_id, entry in zip(token_ids[1:], with_top(found, num_top), strict=True):
        ranked = [(token_id, entry.logprob, entry.rank)]
        top = zip(entry.top_token_ids, entry.top_logprobs, strict=True)
        ranked += [(*each, rank) for rank, each in enumerate(top, start=1)]
        written.append(
            {
                str(token): {
                    "logprob": finite(logprob),
                    "rank": rank,
                    "decoded_token": decode([token]),
                }
                for token, logprob, rank in ranked
            }
        )
    return written


def with_top(found: Sequence[TokenLogprobs], num_top: int) -> list[TokenLogprobs]:
    """The same with num_top alternatives each: more may have been computed."""
    return [
        replace(
            entry,
            top_token_ids=entry.top_token_ids[:num_top],
            top_logprobs=entry.top_logprobs[:num_top],
        )
        for entry in found
    ]


def finite(logprob: float | None) -> float | None:
    """The value with -inf replaced, which JSON cannot hold."""
    return None if logprob is None else max(logprob, LOWEST_LOGPROB)
