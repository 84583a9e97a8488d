"""The grammar of a request with structured output: a state machine over tokens that follows its
text."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Grammar(Protocol):
    """The grammar of one request and where its output stands in it."""

    def copy(self) -> "Grammar":
        """The same grammar in the same place, for another request."""

    def accept(self, token_ids: Sequence[int]) -> None:
        """The output goes on with these tokens, for good."""

    def allowed(self, token_ids: Sequence[int] = ()) -> np.ndarray:
        """Tokens that may follow the output and token_ids after it: bool [V].

        Where token_ids break the grammar themselves, all may: that place is never reached. Where
        the grammar is too complex to go on, none may; after token_ids that says nothing of the
        output, which goes on as it would have.
        """

    def forced(self) -> list[int]:
        """Tokens that say what the output must go on with, as the tokenizer writes that text; other
        tokens may say the same. Empty where there is a choice, or where the grammar is too complex
        to tell."""

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """The number of these tokens that may follow the output one after the other, as far as the
        grammar can tell."""
