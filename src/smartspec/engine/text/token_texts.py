"""Text and bytes of single tokens, and where in an answer's text each begins: what is said beside
log-probabilities."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from smartspec.core.batch import TokenLogprobs
from smartspec.engine.text.detokenizer import INCOMPLETE, IncrementalDetokenizer

BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")  # how sentencepiece's vocabularies write a byte


def _byte_level_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for: printable ones for
    themselves, those above 255 for the other bytes in their order."""
    alphabet = sorted(ByteLevel.alphabet())
    kept = {character: ord(character) for character in alphabet if ord(character) < 256}
    others = sorted(set(range(256)) - set(kept.values()))
    return kept | dict(zip(alphabet[len(kept) :], others, strict=True))


BYTES = _byte_level_alphabet()


@dataclass(frozen=True)
class TokenText:
    """A token and its log-probability (None where there is nothing before it)."""

    # what the token adds to the text, as vLLM has it. A character that is spread over several
    # tokens comes with the last of them, those before it have "". Alternatives are read alone:
    # incomplete characters are U+FFFD.
    text: str
    logprob: float | None
    top: tuple["TokenText", ...] = ()  # the most likely alternatives
    bytes: bytes = b""  # the token's own, of a part of a character as well
    # where in the text it begins, in characters; all parts of a character begin where the first
    # does
    offset: int = 0
    shown: bool = True  # False for the token that ended the answer and is no part of it


class TokenTexts:
    """Text and bytes of the tokens of a vocabulary, kept once they were needed. tokenizer: see
    IncrementalDetokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, bytes]] = {}
        added = tokenizer.get_added_tokens_decoder()
        self._special_token_ids = {token_id for token_id, token in added.items() if token.special}

    def alone(self, token_id: int) -> tuple[str, bytes]:
        """Text and bytes of a token, special ones included. An incomplete character of the text
        reads U+FFFD."""
        if token_id not in self._known:
            # As a second token: some decoders drop the space before the first.
            one, two = (
                self._tokenizer.decode([token_id] * n, skip_special_tokens=False) for n in (1, 2)
            )
            text = two.removeprefix(one) if two.startswith(one) else one
            self._known[token_id] = text, self._bytes(token_id, text)
        return self._known[token_id]

    def read(
        self, text: str, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]
    ) -> tuple[TokenText, ...]:
        """The tokens of a whole text with their log-probabilities."""
        detokenizer = IncrementalDetokenizer(self._tokenizer, [], skip_special_tokens=False)
        tokens = LogprobTexts(self)
        for token_id, entry in zip(token_ids, entries, strict=True):
            name, _ = self.alone(token_id)
            # What the tokenizer itself has put before a text is no part of it.
            is_added = token_id in self._special_token_ids and not text.startswith(
                name, tokens.length
            )
            tokens.push(token_id, "" if is_added else detokenizer.push(token_id), entry)
        return tokens.take(len(text), is_last=True)

    def _bytes(self, token_id: int, text: str) -> bytes:
        written = self._tokenizer.id_to_token(token_id)
        if INCOMPLETE not in text or written is None:
            return text.encode()
        if byte := BYTE_TOKEN.fullmatch(written):
            return bytes.fromhex(byte[1])
        return bytes(BYTES[c] for c in written) if BYTES.keys() >= set(written) else text.encode()


class LogprobTexts:
    """The log-probabilities of one text's tokens on their way to TokenTexts, given out once it is
    certain where in the text their token begins: a stop string may cut the text before."""

    def __init__(self, texts: TokenTexts):
        self._texts = texts
        self._held: list[TokenText] = []
        self.length = 0  # of the text that tokens so far have brought

    def push(
        self, token_id: int, piece: str, entry: TokenLogprobs | None, shown: bool = True
    ) -> None:
        """The next token. piece: the text that it brought. entry: None where there is nothing
        before it."""
        alone, own_bytes = self._texts.alone(token_id)
        is_part = INCOMPLETE in alone
        text = piece if piece or is_part else alone
        token = TokenText(
            text,
            None if entry is None else entry.logprob,
            bytes=own_bytes if is_part else text.encode(),
            offset=self.length,
            shown=shown,
        )
        if entry is not None:
            top = zip(entry.top_token_ids, entry.top_logprobs, strict=True)
            token = replace(
                token, top=tuple(self._alternative(*each, token_id, token) for each in top)
            )
        self._held.append(token)
        self.length += len(piece)

    def take(self, num_shown: int, is_last: bool) -> tuple[TokenText, ...]:
        """Take those that begin in the text that is shown (num_shown characters), or all; then no
        more text follows."""
        num_taken = (
            len(self._held) if is_last else sum(token.offset <= num_shown for token in self._held)
        )
        taken, self._held = self._held[:num_taken], self._held[num_taken:]
        return tuple(replace(token, offset=min(token.offset, num_shown)) for token in taken)

    def _alternative(self, token_id: int, logprob: float, own_id: int, own: TokenText) -> TokenText:
        text, its_bytes = (
            (own.text, own.bytes) if token_id == own_id else self._texts.alone(token_id)
        )
        return TokenText(text, logprob, bytes=its_bytes)
