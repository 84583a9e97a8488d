"""A grammar as requests follow it, token by token, and what happens where it is too complex.

llguidance stops at limits of its own and keeps such an error for good. All copies of a matcher
share its lexer, so they keep the error too, without a notice. A draft may reach a limit where plain
decoding never would. So output and drafts are followed by matchers with separate lexers. After an
error the matcher is built again and fed the output's tokens.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher

MAX_BUILDS = 8  # of each of both matchers of a call, the first included
QUICK_BUILD_SECONDS = 0.02  # what building may take between two steps

Answer = TypeVar("Answer")


class Matchers:
    """Copies of a matcher at the beginning of a grammar; an error of one is an error of its whole
    generation.

    build: makes the first matcher, and the one of each later generation if that is quick.
    """

    def __init__(self, build: Callable[[], LLMatcher]):
        self._build = build
        begun = time.thread_time()
        self._matcher: LLMatcher | None = build()
        self._num_builds = MAX_BUILDS if time.thread_time() - begun < QUICK_BUILD_SECONDS else 1
        self.generation = 0

    def begin(self) -> LLMatcher | None:
        """The matcher at the beginning; None where it was built too often."""
        return None if self._matcher is None else self._matcher.deep_copy()

    def renew(self, generation: int) -> None:
        """A matcher of this generation has met an error."""
        if generation == self.generation:
            self.generation += 1
            self._matcher = self._build() if self.generation < self._num_builds else None


class _Follower:
    """A matcher that is shown the tokens of one output. computes_masks: before each token, as plain
    decoding does: masks are what is limited, and what they have learned makes the next ones
    cheaper."""

    def __init__(self, matchers: Matchers, computes_masks: bool):
        self._matchers = matchers
        self._computes_masks = computes_masks
        self._generation = -1
        self._matcher: LLMatcher | None = None
        self._num_seen = 0
        self._has_mask = False  # computed where the matcher is

    def ask(
        self, token_ids: list[int], question: Callable[[LLMatcher], Answer], unknown: Answer
    ) -> Answer:
        """What the matcher answers after these tokens; unknown if it cannot tell."""
        if self._generation != self._matchers.generation:
            self._generation = self._matchers.generation
            self._matcher, self._num_seen, self._has_mask = self._matchers.begin(), 0, False
        if self._matcher is None:
            return unknown
        for token_id in token_ids[self._num_seen :]:
            if self._computes_masks and not self._has_mask:
                self._matcher.compute_bitmask()
            self._matcher.consume_token(token_id)
            self._has_mask = False
        self._num_seen = len(token_ids)
        answer = unknown if self._matcher.is_error() else question(self._matcher)
        if not self._matcher.is_error():
            return answer
        self.fail()
        return unknown

    def mask_after(self, token_ids: list[int]) -> bytes | None:
        """The tokens that may follow these, a bit each; None if that is not known."""
        mask = self.ask(token_ids, LLMatcher.compute_bitmask, None)
        self._has_mask = mask is not None
        return mask

    def fail(self) -> None:
        """The matcher has met an error."""
        self._matchers.renew(self._generation)


class TokenGrammar:
    """Implements core.grammar.Grammar. output, drafts: what follows them. vocab_size: width of the
    logits."""

    def __init__(
        self, output: Matchers, drafts: Matchers, vocab_size: int, token_ids: Sequence[int] = ()
    ):
        self._output, self._drafts = output, drafts
        self._vocab_size = vocab_size
        self._token_ids = list(token_ids)
        self._matcher = _Follower(output, computes_masks=True)
        self._ahead = _Follower(drafts, computes_masks=False)
        self._mask: np.ndarray | None = None  # of what may follow the output, once that is known

    def copy(self) -> "TokenGrammar":
        return TokenGrammar(self._output, self._drafts, self._vocab_size, self._token_ids)

    def accept(self, token_ids: Sequence[int]) -> None:
        self._token_ids.extend(token_ids)
        self._mask = None

    def allowed(self, token_ids: Sequence[int] = ()) -> np.ndarray:
        if token_ids:
            return self._allowed_ahead(list(token_ids))
        if self._mask is None:
            self._mask = self._allowed_after_output()
            self._mask.flags.writeable = False
        return self._mask

    def _allowed_after_output(self) -> np.ndarray:
        for _ in range(2):  # with a new lexer, in which other outputs have left nothing
            if (mask := self._matcher.mask_after(self._token_ids)) is not None:
                return self._unpacked(mask)
        return np.zeros(self._vocab_size, dtype=bool)

    def _allowed_ahead(self, draft: list[int]) -> np.ndarray:
        def look(matcher: LLMatcher) -> tuple[int, np.ndarray]:
            num_consumed = matcher.try_consume_tokens(draft)
            allowed = self._unpacked(matcher.compute_bitmask())
            if not matcher.is_error():
                matcher.rollback(num_consumed)
            return num_consumed, allowed

        nothing = np.zeros(self._vocab_size, dtype=bool)
        num_consumed, allowed = self._ahead.ask(self._token_ids, look, (len(draft), nothing))
        if num_consumed == len(draft):
            return allowed
        # Only a mask tells of errors: a token that it allows and that is not consumed is one, too.
        if allowed[draft[num_consumed]]:
            self._ahead.fail()
            return nothing
        return np.ones(self._vocab_size, dtype=bool)

    def forced(self) -> list[int]:
        return self._ahead.ask(self._token_ids, LLMatcher.compute_ff_tokens, [])

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        return self._ahead.ask(
            self._token_ids, lambda matcher: matcher.validate_tokens(list(token_ids)), 0
        )

    def _unpacked(self, mask: bytes) -> np.ndarray:
        """bool [V]."""
        return np.unpackbits(
            np.frombuffer(mask, dtype=np.uint8), count=self._vocab_size, bitorder="little"
        ).view(bool)
