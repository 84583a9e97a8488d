"""Grammars through llguidance: compiled once per call, followed by each choice."""

import logging
import threading
from collections.abc import Sequence
from copy import copy
from functools import cached_property

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

logger = logging.getLogger(__name__)

MAX_ERROR_CHARACTERS = 200
# What a grammar may cost: about 40 ms to compile, 14 ms for the tokens behind one text (most take 0.1).
LIMITS = {"initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 100_000, "step_max_items": 50_000}


class TokenGrammar:
    """Implements core.grammar.Grammar. vocab_size: width of the logits."""

    def __init__(self, matcher: LLMatcher, vocab_size: int):
        self._matcher = matcher
        self._vocab_size = vocab_size

    def copy(self) -> "TokenGrammar":
        return TokenGrammar(self._matcher.deep_copy(), self._vocab_size)

    def accept(self, token_ids: Sequence[int]) -> None:
        self._matcher.consume_tokens(list(token_ids))

    def allowed(self, token_ids: Sequence[int] = ()) -> np.ndarray:
        num_consumed = self._matcher.try_consume_tokens(list(token_ids))
        if num_consumed < len(token_ids):
            allowed = np.ones(self._vocab_size, dtype=bool)
        else:
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(bool)
            if self._matcher.is_error():
                allowed[:] = False
        self._matcher.rollback(num_consumed)
        return allowed

    def forced(self) -> list[int]:
        return self._matcher.compute_ff_tokens()

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        return self._matcher.validate_tokens(list(token_ids))


class GrammarCompiler:
    """Makes grammars for one tokenizer, a fast one of transformers. vocab_size: width of the logits.

    Its tables of the vocabulary are made with the first grammar: 33 MB and 0.2 s, in which the interpreter is held, for
    a vocabulary of 49,000, which a server that nobody asks for structured output does without.
    """

    def __init__(self, tokenizer, vocab_size: int, eos_token_ids: frozenset[int]):
        self._backend = tokenizer.backend_tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._tables_lock = threading.Lock()
        self._limits = LLParserLimits(precompute_large_lexemes=False, verbose_errors=False, **LIMITS)

    def _tables(self) -> LLTokenizer | None:
        """None where llguidance cannot read the tokenizer."""
        with self._tables_lock:
            return self._tables_once

    @cached_property
    def _tables_once(self) -> LLTokenizer | None:
        backend = copy(self._backend)
        backend.no_padding()
        backend.no_truncation()
        eos_token = sorted(self._eos_token_ids) or None
        try:
            return LLTokenizer(backend.to_str(), n_vocab=self._vocab_size, eos_token=eos_token)
        except Exception:  # of whatever kind: everything else can be served
            logger.warning("llguidance cannot read this tokenizer: structured output is refused", exc_info=True)
            return None

    def compile(self, definition: str) -> TokenGrammar:
        """definition: as from LLMatcher.grammar_from_*. Raises ValueError saying why it cannot be, or
        that nothing satisfies it. Call it in a thread."""
        tables = self._tables()
        if tables is None:
            raise ValueError("there is no structured output with this model: llguidance cannot read its tokenizer")
        matcher = LLMatcher(tables, definition, log_level=0, limits=self._limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the slow first one, beside the engine; copies share what it has learned
        if matcher.is_error():
            lines = matcher.get_error().split("<state>")[0].strip().splitlines()
            raise ValueError(" ".join(" ".join(lines).split())[:MAX_ERROR_CHARACTERS])
        grammar = TokenGrammar(matcher, self._vocab_size)
        if not grammar.allowed().any():
            raise ValueError("no text satisfies it")
        return grammar
