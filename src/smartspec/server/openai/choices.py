"""An answer of several choices, as chats and completions have it: whole, or in chunks."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from smartspec.core.batch import TokenLogprobs
from smartspec.engine.text.stream import TextDelta
from smartspec.server.http.event_stream import event
from smartspec.server.openai.deltas import usage
from smartspec.server.openai.prompt_logprobs import prompt_json
from smartspec.server.openai.streaming import Call


class Choices(ABC):
    """Implements streaming.Format. decode: the text of token ids."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, call: Call, decode: Callable[[list[int]], str]):
        self._call, self._decode = call, decode
        self._n, self._options = call.body.n, call.body.stream_options
        answer_id = f"{self.id_prefix}-{call.body.request_id or uuid.uuid4().hex}"
        self._head = {"id": answer_id, "created": int(time.time()), "model": call.model}
        self._last: dict[int, TextDelta] = {}

    @abstractmethod
    def chunk_choice(self, delta: TextDelta, is_first: bool) -> dict:
        """The choice of a streamed chunk; called in order. is_first: of this choice."""

    def whole_choice(self, delta: TextDelta) -> dict:
        """The choice of an answer that is not streamed."""
        return self.chunk_choice(delta, is_first=True)

    @abstractmethod
    def place_prompts(self, answer: dict, choices: Mapping[int, TextDelta]) -> None:
        """Place the log-probabilities of the prompts into the answer."""

    def whole(self, choices: Mapping[int, TextDelta]) -> dict:
        body = self._head | {
            "object": self.whole_object,
            "choices": [
                self.whole_choice(delta) | self._report(delta) for delta in choices.values()
            ],
            "usage": usage(choices, self._n),
        }
        if self._call.params.prompt_logprobs is not None:
            self.place_prompts(body, choices)
        return body

    def push(self, delta: TextDelta) -> Iterator[bytes]:
        is_first = delta.index not in self._last
        self._last[delta.index] = delta
        if is_first or delta.text or delta.logprobs or delta.finish_reason:
            choice = self.chunk_choice(delta, is_first) | self._report(delta)
            yield self._chunk([choice], self._options.continuous_usage_stats)

    def end(self) -> Iterator[bytes]:
        if self._options.include_usage:
            yield self._chunk([], True)
        yield b"data: [DONE]\n\n"

    def failed(self, error: dict) -> bytes:
        return event(error)

    def _chunk(self, choices: list[dict], has_usage: bool) -> bytes:
        chunk = self._head | {"object": self.chunk_object, "choices": choices}
        if self._options.include_usage:
            chunk["usage"] = usage(self._last, self._n) if has_usage else None
        return event(chunk)

    def _prompt_logprobs(self, number: int, found: tuple[TokenLogprobs, ...]) -> dict:
        """As vLLM's field of that name, if it is requested. number: of the prompt. found: of its
        second token and those after it."""
        wanted = self._call.body.prompt_logprobs
        if wanted is None:
            return {}
        token_ids = self._call.prompts[number]
        return {"prompt_logprobs": prompt_json(token_ids, found, wanted, self._decode)}

    def _report(self, delta: TextDelta) -> dict:
        """Which parts of the text were accepted draft tokens, if that is requested."""
        if not self._call.body.speculation.report:
            return {}
        pieces = [{"text": text, "accepted": accepted} for text, accepted in delta.pieces]
        return {"speculation": {"request": delta.request_number, "pieces": pieces}}
