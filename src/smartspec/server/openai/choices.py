"""An answer of several choices, as chats and completions have it: whole, or in chunks."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping

from smartspec.engine.text.stream import TextDelta
from smartspec.server.http.event_stream import event
from smartspec.server.openai.deltas import usage
from smartspec.server.openai.formats import ChatFormat, CompletionFormat, ScoredPrompt
from smartspec.server.openai.prompt_logprobs import prompt_json
from smartspec.server.openai.streaming import Call


class Choices:
    """Implements streaming.Format. form: of each choice. decode: the text of token ids."""

    def __init__(
        self,
        call: Call,
        form: CompletionFormat | ChatFormat,
        decode: Callable[[list[int]], str],
    ):
        self._call, self._form, self._decode = call, form, decode
        answer_id = f"{form.id_prefix}-{call.body.request_id or uuid.uuid4().hex}"
        self._head = {"id": answer_id, "created": int(time.time()), "model": call.model}
        self._last: dict[int, TextDelta] = {}

    def whole(self, choices: Mapping[int, TextDelta]) -> dict:
        n = self._call.body.n
        body = self._head | {
            "object": self._form.whole_object,
            "choices": [
                self._form.whole_choice(delta) | self._report(delta) for delta in choices.values()
            ],
            "usage": usage(choices, n),
        }
        if self._call.params.prompt_logprobs is not None:
            prompts = [
                self._scored(token_ids, choices[number * n])
                for number, token_ids in enumerate(self._call.prompts)
            ]
            self._form.place_prompts(body, [prompts[index // n] for index in choices])
        return body

    def push(self, delta: TextDelta) -> Iterator[bytes]:
        is_first = delta.index not in self._last
        self._last[delta.index] = delta
        if is_first or delta.text or delta.logprobs or delta.finish_reason:
            choice = self._form.chunk_choice(delta, is_first) | self._report(delta)
            yield self._chunk([choice], self._call.body.continuous_usage)

    def end(self) -> Iterator[bytes]:
        if self._call.body.include_usage:
            yield self._chunk([], True)
        yield b"data: [DONE]\n\n"

    def failed(self, error: dict) -> bytes:
        return event(error)

    def _chunk(self, choices: list[dict], has_usage: bool) -> bytes:
        chunk = self._head | {"object": self._form.chunk_object, "choices": choices}
        if self._call.body.include_usage:
            chunk["usage"] = usage(self._last, self._call.body.n) if has_usage else None
        return event(chunk)

    def _scored(self, token_ids: list[int], first: TextDelta) -> ScoredPrompt:
        """A prompt of the call; first: its first choice."""
        found, wanted = first.prompt_logprobs or (), self._call.body.prompt_logprobs
        return ScoredPrompt(
            token_ids,
            found,
            None if wanted is None else prompt_json(token_ids, found, wanted, self._decode),
        )

    def _report(self, delta: TextDelta) -> dict:
        """Which parts of the text were accepted draft tokens, if that is requested."""
        speculation = self._call.body.speculation
        if speculation is None or not speculation.report:
            return {}
        pieces = [{"text": text, "accepted": accepted} for text, accepted in delta.pieces]
        return {"speculation": {"request": delta.request_number, "pieces": pieces}}
