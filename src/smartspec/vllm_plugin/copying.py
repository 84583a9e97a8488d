"""How long each text has followed its drafts: how strong a match is behind a draft that was copied from somewhere.

vLLM's scheduler gets the drafts of its lookups, but not how much of the text they continue. What it can see is whether
the text went on as the last draft said: then the next one continues the same passage, or one that is as long.
"""

from itertools import repeat

import numpy as np

from smartspec.control import StepFeedback
from smartspec.vllm_plugin.decision import Decision

COPYING = ("ngram", "suffix")  # methods whose drafts are copied
# Tokens followed, from which on acceptance is learned apart; those that our engine's prompt lookup has, whose shortest
# match is 2, less that.
LEAST_FOLLOWED = (0, 1, 2, 4, 7)


class Followed:
    """Tokens that the texts of requests have taken from their drafts, up to the newest, by vLLM's id of the request."""

    def __init__(self):
        self._tokens: dict[str, int] = {}  # where it is not 0

    def of(self, names: tuple[str, ...]) -> np.ndarray:
        """int [R]."""
        return np.fromiter(map(self._tokens.get, names, repeat(0)), np.int64, len(names))

    def observe(self, decision: Decision, told: StepFeedback) -> None:
        """What came of the drafts of a step: of those that were accepted as a whole, whether the token behind them was
        the draft's next one too. Where there was no next one it counts as such."""
        assert decision.cut_off is not None, "drafts that are copied exist before they are decided on"
        is_whole = (told.verified > 0) & (told.accepted == told.verified) & (decision.cut_off < 0)
        follows = is_whole | (told.free_tests[0].matched > 0)
        tokens = follows * (told.view.match_lengths[0] + told.accepted + 1)
        self._tokens = {name: n for name, n in zip(decision.names, tokens.tolist(), strict=True) if n}
