"""How many prompt tokens a step takes, and of which requests.

A step lasts as long as its prompt tokens do, and every decoding request waits for its next token
that long. So a long prompt takes a small part of each step, and shorter ones pass it (as vLLM's
long_prefill_token_threshold and max_long_partial_prefills do).
"""

from smartspec.core.request import Request

# Prompt tokens of a step, of all requests, whose log-probabilities are wanted: each costs a row of
# logits.
SCORED_CHUNK = 64


class PrefillRoom:
    """What is left of a step for prompts.

    tokens: of all. threshold: a prompt with more tokens to compute is long; one long prompt takes
    part in a step, with so many tokens.
    """

    def __init__(self, tokens: int, threshold: int):
        self.tokens = tokens
        self._threshold = threshold
        self._has_long = False
        self._scored = SCORED_CHUNK

    def has_any_for(self, num_uncomputed: int) -> bool:
        """Whether a request with so many tokens to compute gets some."""
        return self.tokens > 0 and not (self._has_long and num_uncomputed > self._threshold)

    def take(self, request: Request) -> int:
        """The tokens of the request that the step computes, 0 if there is no room."""
        wanted = request.num_uncomputed_tokens
        if not self.has_any_for(wanted):
            return 0
        self._has_long |= wanted > self._threshold
        chunk = min(wanted, self.tokens, self._threshold)
        if request.num_unscored_tokens:
            chunk = min(chunk, max(1, self._scored))
            self._scored -= chunk
        self.tokens -= chunk
        return chunk
