"""Pieces of generated text together: as one piece, and what they count."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from smartspec.engine.text.stream import TextDelta


def merge(deltas: Sequence[TextDelta]) -> TextDelta:
    """All deltas of one choice as one; the last knows the totals and the finish reason."""
    logprobs = None
    if deltas[-1].logprobs is not None:
        logprobs = tuple(token for delta in deltas for token in delta.logprobs)
    return replace(
        deltas[-1],
        prompt_logprobs=deltas[0].prompt_logprobs,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=logprobs,
        pieces=tuple(piece for delta in deltas for piece in delta.pieces),
    )


def usage(last_deltas: Mapping[int, TextDelta], n: int) -> dict:
    """Token counts of a call from the last delta of each choice; a prompt counts once however many
    choices it has."""
    prompts = [delta for index, delta in last_deltas.items() if index % n == 0]
    num_prompt_tokens = sum(delta.num_prompt_tokens for delta in prompts)
    num_output_tokens = sum(delta.num_output_tokens for delta in last_deltas.values())
    counts = {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(delta.num_cached_tokens for delta in prompts)
        },
    }
    of_predictions = [
        delta.prediction_tokens
        for delta in last_deltas.values()
        if delta.prediction_tokens is not None
    ]
    if of_predictions:
        accepted, rejected = map(sum, zip(*of_predictions, strict=True))
        details = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
        counts["completion_tokens_details"] = details
    return counts
