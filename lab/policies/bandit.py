"""What the bandits over lengths have in common: which steps say something about a length, and what
they say."""

from smartspec.control.records import Outcome


def seconds_per_token(outcome: Outcome) -> float | None:
    """Time that a decoding request took for a token of the step, in seconds; None where that says
    nothing about the length: a prefill took part of it, or there was no request. The engines of the
    papers run prefill by itself."""
    num_rows = outcome.view.num_rows
    if not num_rows or outcome.view.prefill_tokens:
        return None
    return outcome.seconds.total * num_rows / (num_rows + int(outcome.accepted.sum()))


def batch_class(num_rows: int) -> int:
    """Numbers of requests up to the same power of two share what is learned."""
    return max(num_rows - 1, 0).bit_length()
