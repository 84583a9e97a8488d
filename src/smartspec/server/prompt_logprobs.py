"""Log-probabilities of a prompt's tokens, written as vLLM does: by token id, beside its likeliest alternatives."""

from collections.abc import Callable, Sequence

from smartspec.core.batch import TokenLogprobs
from smartspec.server.errors import APIError
from smartspec.server.formats import finite

MAX_ENTRIES = 32_768  # of an answer: 2 MB


def check_num_entries(prompts: list[list[int]], n: int, num_top: int) -> None:
    """Raises APIError 400 where an answer would be too large."""
    num_entries = sum(map(len, prompts)) * n * (1 + num_top)
    if num_entries > MAX_ENTRIES:
        raise APIError(
            400,
            f"prompt_logprobs {num_top} of these prompts are {num_entries} entries, and an answer has at most "
            f"{MAX_ENTRIES}: ask for fewer alternatives, or send less in one call",
            "prompt_logprobs",
            "invalid_value",
        )


def prompt_json(
    token_ids: Sequence[int], found: Sequence[TokenLogprobs], decode: Callable[[list[int]], str]
) -> list[dict | None]:
    """Of every token of a prompt; null for the first, before which there is nothing. found: of the others. Takes long
    for a long prompt: call it in a thread."""
    written: list[dict | None] = [None]
    for token_id, entry in zip(token_ids[1:], found, strict=True):
        ranked = [
            (token_id, entry.logprob, entry.rank),
            *zip(entry.top_token_ids, entry.top_logprobs, range(1, len(entry.top_token_ids) + 1), strict=True),
        ]
        written.append(
            {
                str(token): {"logprob": finite(logprob), "rank": rank, "decoded_token": decode([token])}
                for token, logprob, rank in ranked
            }
        )
    return written
