"""Grammars through llguidance: compiled once per call, when a helper process has told that they may
be."""

import asyncio
import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cached_property, partial
from weakref import finalize

from llguidance import LLTokenizer

from smartspec.core.origin import UNKNOWN_ORIGIN, Origin, key_of
from smartspec.engine.runtime.async_engine import QueueFull
from smartspec.server.structured.grammar_check import GrammarCheck
from smartspec.server.structured.grammar_worker import first_matcher, read_tables
from smartspec.server.structured.token_grammar import Matchers, TokenGrammar

logger = logging.getLogger(__name__)

MAX_HELPERS = 2  # definitions that are compiled at once, each checked in a process of its own
# One client has at most half, so that another one finds room.
MAX_WAITING, MAX_WAITING_OF_CLIENT = 64, 32  # definitions that wait to be compiled, or are
MAX_BYTES, MAX_BYTES_OF_CLIENT = 2**30, 2**29  # of all grammars


class GrammarCompiler:
    """Makes grammars for one tokenizer, a fast one of transformers. vocab_size: width of the
    logits.

    Its tables of the vocabulary are made with the first grammar, so a server without structured
    output does not pay for them. They take 33 MB and 0.2 s for a vocabulary of 49,000, and hold the
    interpreter lock. The helper processes, in which definitions are compiled first, start with the
    first grammar too.
    """

    def __init__(self, tokenizer, vocab_size: int, eos_token_ids: frozenset[int]):
        self._backend = tokenizer.backend_tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._check = GrammarCheck(self._vocabulary)
        self._lock = threading.RLock()  # a garbage collection may give back while it is held
        self._threads = ThreadPoolExecutor(MAX_HELPERS, thread_name_prefix="grammars")
        self._num_waiting_of: Counter[str] = Counter()
        # of the grammars that requests hold, by client
        self._num_bytes_of: Counter[str] = Counter()

    async def compiled(self, definition: str, origin: Origin = UNKNOWN_ORIGIN) -> TokenGrammar:
        """Runs compile in a thread. Stops when the caller is cancelled."""
        client = origin.client
        waiting, own = self._num_waiting_of.total(), self._num_waiting_of[client]
        if waiting >= MAX_WAITING or own >= MAX_WAITING_OF_CLIENT:
            raise QueueFull(f"{waiting} grammars wait to be compiled, {own} of yours")
        given_up = threading.Event()
        self._num_waiting_of[client] += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._threads, self.compile, definition, given_up, origin
            )
        finally:
            given_up.set()
            self._num_waiting_of -= Counter({client: 1})  # which drops what is 0

    def compile(
        self,
        definition: str,
        given_up: threading.Event | None = None,
        origin: Origin = UNKNOWN_ORIGIN,
    ) -> TokenGrammar:
        """definition: as from LLMatcher.grammar_from_*. given_up: set when the caller was
        cancelled. Raises ValueError saying why it cannot be, that it takes too much, or that
        nothing satisfies it; GrammarCheckFailed where the helper cannot tell; QueueFull where it
        takes too much beside those that are here. Call it in a thread."""
        with self._lock:
            tables = self._tables
        if tables is None:
            raise ValueError(
                "there is no structured output with this model: llguidance cannot read its "
                "tokenizer"
            )
        checked = self._check.check(
            definition, given_up or threading.Event(), key_of(origin.cache_salt)
        )
        build = partial(first_matcher, tables, checked.definition)
        output = Matchers(build)
        self._take_memory(2 * checked.num_bytes, output, origin.client)
        return TokenGrammar(output, Matchers(build), self._vocab_size)

    def _take_memory(self, num_bytes: int, matchers: Matchers, client: str) -> None:
        """Counts memory as used while the matchers exist. Raises QueueFull if all grammars, or
        those of the client, would take too much."""
        with self._lock:
            total, own = self._num_bytes_of.total(), self._num_bytes_of[client]
            if total + num_bytes > MAX_BYTES or own + num_bytes > MAX_BYTES_OF_CLIENT:
                raise QueueFull(
                    f"the grammars of requests that are here take {total >> 20} MB, yours "
                    f"{own >> 20} MB"
                )
            self._num_bytes_of[client] += num_bytes
        finalize(matchers, self._give_back, num_bytes, client)

    def _give_back(self, num_bytes: int, client: str) -> None:
        with self._lock:
            self._num_bytes_of[client] -= num_bytes
            if not self._num_bytes_of[client]:
                del self._num_bytes_of[client]

    def close(self) -> None:
        """End the helper processes."""
        self._threads.shutdown(cancel_futures=True)
        self._check.close()

    def _vocabulary(self) -> dict:
        """The arguments of read_tables."""
        backend = copy(self._backend)
        backend.no_padding()
        backend.no_truncation()
        return {
            "tokenizer_json": backend.to_str(),
            "vocab_size": self._vocab_size,
            "eos_token_ids": self._eos_token_ids,
        }

    @cached_property
    def _tables(self) -> LLTokenizer | None:
        """Tables of the vocabulary; None if llguidance cannot read the tokenizer."""
        try:
            return read_tables(**self._vocabulary())
        except Exception:  # of whatever kind: everything else can be served
            logger.warning(
                "llguidance cannot read this tokenizer: structured output is refused", exc_info=True
            )
            return None
