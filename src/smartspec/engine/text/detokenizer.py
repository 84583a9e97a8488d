"""Token ids to text, piece by piece, and stop strings."""

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

NUM_CONTEXT_TOKENS = 4  # a character has at most four bytes, so at most four tokens
INCOMPLETE = "\ufffd"


class IncrementalDetokenizer:
    """Text of a growing list of tokens. A character spread over several tokens comes with its last
    one.

    tokenizer: a tokenizers.Tokenizer (of a transformers tokenizer: its backend_tokenizer).
    prompt_token_ids: what goes before; some decoders treat the very first token differently
    (leading spaces), so its end is context. Special tokens have no text unless skip_special_tokens
    is false, and a character that is never completed has none.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: list[int], skip_special_tokens: bool = True
    ):
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        context = prompt_token_ids[-NUM_CONTEXT_TOKENS:]
        if tokenizer.decode(context).endswith(INCOMPLETE):
            context = []
        self._stream = DecodeStream(ids=context, skip_special_tokens=skip_special_tokens)

    def push(self, token_id: int) -> str:
        """Text that became certain with this token; "" while a character is incomplete."""
        try:
            return self._stream.step(self._tokenizer, token_id) or ""
        except Exception:
            # The library gives up when invalid bytes change how the text before them decodes; go on
            # from here.
            self._stream = DecodeStream(skip_special_tokens=self._skip_special_tokens)
            return self._stream.step(self._tokenizer, token_id) or ""


class StopStrings:
    """Cuts text at the first stop string, and holds back what may be the beginning of one.

    The stop string completed at the earliest character wins, among those the longest: the result
    does not depend on the pieces in which the text arrives. The stop string itself is part of the
    text only if it is to be included.
    """

    def __init__(self, stop: tuple[str, ...], included: bool = False):
        self._stop = stop
        self._included = included
        self._held = ""
        self.found: str | None = None  # the stop string that ended the text

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may be shown now, and whether a stop string ended it (then nothing may
        follow)."""
        self._held += text
        starts = [(self._held.find(stop), stop) for stop in self._stop]
        matches = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        if matches:
            end, start, self.found = min(matches)
            return self._held[: end if self._included else start], True
        length = len(self._held) - self._num_undecided()
        shown, self._held = self._held[:length], self._held[length:]
        return shown, False

    def flush(self) -> str:
        """Text still held back when the tokens ended without a stop string."""
        return self._held

    def _num_undecided(self) -> int:
        """Length of the longest end of the held text that some stop string begins with."""
        longest = max(map(len, self._stop), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0
