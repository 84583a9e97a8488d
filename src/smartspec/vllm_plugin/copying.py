"""How long each text has followed its drafts: how long the match of a copied draft is.

vLLM's scheduler gets the drafts of its lookups, but not how much of the text they continue. What it can see is whether
the text went on as the last draft said: then the next one continues the same passage, or one that is as long.
"""

from itertools import repeat

import numpy as np

from smartspec.vllm_plugin.decision import Decision, EmittedTokens, Step

COPYING = ("ngram", "suffix")  # methods whose drafts are copied
# Acceptance is learned separately from these numbers of followed tokens on. They are the match lengths of our engine's
# prompt lookup, less its shortest match, 2.
LEAST_FOLLOWED = (0, 1, 2, 4, 7)


class Followed:
    """Tokens that the texts of requests have taken from their drafts, up to the newest, by vLLM's id of the request."""

    def __init__(self):
        self._tokens: dict[str, int] = {}  # where it is not 0

    def of(self, names: tuple[str, ...]) -> np.ndarray:
        """int [R]."""
        return np.fromiter(map(self._tokens.get, names, repeat(0)), np.int64, len(names))

    def observe(self, decision: Decision, step: Step, outcome: EmittedTokens) -> None:
        """Note the outcome of the drafts of a step. If a draft was accepted as a whole: was the token after it the
        draft's next one too? Without a next one it counts as such. It is a loop because the next step waits for it:
        right after a pass of the model, a few rows take less time than a few calls of numpy."""
        assert decision.cut_off is not None, "drafts that are copied exist before they are decided on"
        found = {}
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
                found[name] = self._tokens.get(name, 0) + emitted
        self._tokens = found
