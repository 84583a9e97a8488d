"""Records of one request of a run, and of speculation over the run. Servers and simulations use the
same ones."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The record of one request. Seconds; start_seconds counts from the start of the run."""

    prompt_id: str
    task: str
    start_seconds: float
    # until the first text arrived; None if none did, or if all of it came at once, not as a stream
    ttft_seconds: float | None
    end_to_end_seconds: float
    num_prompt_tokens: int
    num_output_tokens: int
    # token counts are the server's; without it num_output_tokens is the number of pieces of text
    has_usage: bool
    finish_reason: str | None
    error: str | None  # None if the answer arrived whole
    text: str
    # tpot_target_seconds, ttft_target_seconds: what was wanted
    tpot_target_seconds: float | None = None
    ttft_target_seconds: float | None = None
    num_refusals: int = 0  # how often the server said to come back later, which was waited for

    @property
    def tpot_seconds(self) -> float | None:
        """(end-to-end - TTFT) / (tokens - 1): time per output token after the first; None below two
        tokens.

        Not the mean gap between pieces: a speculative server sends several tokens in one piece.
        """
        if self.ttft_seconds is None or self.num_output_tokens < 2:
            return None
        return (self.end_to_end_seconds - self.ttft_seconds) / (self.num_output_tokens - 1)

    @property
    def met_target(self) -> bool | None:
        """True if the time to the first token and the time per output token met their targets. Only
        those with a target and a value count; None if there are none."""
        pairs = (
            (self.ttft_seconds, self.ttft_target_seconds),
            (self.tpot_seconds, self.tpot_target_seconds),
        )
        met = [
            seconds <= target
            for seconds, target in pairs
            if seconds is not None and target is not None
        ]
        return all(met) if met else None


@dataclass(frozen=True)
class SpeculationCounters:
    """Draft tokens made, verified and accepted, and decoding requests summed over steps, since the
    server started."""

    num_drafted_tokens: int
    num_verified_tokens: int
    num_accepted_tokens: int
    num_decode_rows: int
