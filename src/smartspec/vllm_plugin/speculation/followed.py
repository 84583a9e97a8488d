"""How well texts follow the drafts of vLLM's lookups.

Of these the scheduler gets the drafts, but not the length of the match that they continue. It sees
whether the text went on as the last draft said. Then the next draft continues the same passage, or
one that is as long.
"""

from itertools import repeat

import numpy as np

from smartspec.vllm_plugin.step.decision import Decision, EmittedTokens, Step

COPYING = ("ngram", "suffix")  # methods of vLLM whose drafts are copied from texts
# Acceptance is learned separately from these numbers of followed tokens on. They are the match
# lengths of our engine's prompt lookup, less its shortest match, 2.
LEAST_FOLLOWED = (0, 1, 2, 4, 7)


class FollowedTokens:
    """The number of tokens that each text has followed its drafts, up to the newest, by vLLM's id
    of the request."""

    def __init__(self):
        self._tokens: dict[str, int] = {}  # where it is not 0

    def of(self, names: tuple[str, ...]) -> np.ndarray:
        """Return the numbers of these requests: int [R]."""
        return np.fromiter(map(self._tokens.get, names, repeat(0)), np.int64, len(names))

    def observe(self, decision: Decision, step: Step, outcome: EmittedTokens) -> None:
        """Note the outcome of a step's drafts. A text follows a draft that was accepted as a whole,
        if the token after it is the draft's next one too, or the draft has no next one. This is a
        loop because the next step waits for it: right after a pass of the model, a few rows take
        less time than a few calls of numpy."""
        assert decision.cut_off is not None, (
            "drafts that are copied exist before they are decided on"
        )
        tokens = {}
        columns = decision.names, decision.lengths.tolist(), decision.cut_off.tolist()
        for name, decided, next_draft in zip(*columns, strict=True):
            emitted = outcome.emitted.get(name, 0)
            num_verified = step.verified.get(name, 0)
            if emitted <= num_verified or name in outcome.invalid:
                continue
            if next_draft < 0:
                follows = num_verified > 0
            else:
                follows = num_verified == decided and outcome.tokens[name][-1] == next_draft
            if follows:
                tokens[name] = self._tokens.get(name, 0) + emitted
        self._tokens = tokens
