"""An answer as Anthropic's Messages API has it, whole or as its events."""

import json
import uuid
from collections.abc import Iterator, Mapping

from smartspec.engine.text.stream import TextDelta
from smartspec.server.anthropic.body import PromptBody
from smartspec.server.http.event_stream import named_event
from smartspec.server.openai.said import AnswerReader
from smartspec.server.openai.streaming import Call


class MessageFormat:
    """Implements openai.streaming.Format."""

    def __init__(self, call: Call, body: PromptBody):
        self._head = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
        }
        self._reader = AnswerReader(call.reading)
        self._last: TextDelta | None = None
        self._blocks: list[dict] = []  # the content so far
        self._kind = ""  # of the block under way, which holds text; empty: none is

    def whole(self, choices: Mapping[int, TextDelta]) -> dict:
        whole = choices[0]
        for _ in self.push(whole):
            pass  # the events are not sent
        return self._head | {"content": self._blocks, "usage": _usage(whole)} | self._end_of(whole)

    def push(self, delta: TextDelta) -> Iterator[bytes]:
        if self._last is None:
            nothing = {"content": [], "stop_reason": None, "stop_sequence": None}
            begun = self._head | nothing | {"usage": _usage(delta) | {"output_tokens": 0}}
            yield _event("message_start", message=begun)
        self._last = delta
        said = self._reader.push(delta.text, delta.finish_reason)
        if said.thought:
            yield from self._write("thinking", said.thought, {"thinking": "", "signature": ""})
        if said.text:
            yield from self._write("text", said.text, {"text": ""})
        for call in said.calls:
            yield from self._end_block()
            tool_use = {"id": f"toolu_{uuid.uuid4().hex[:24]}", "name": call.name, "input": {}}
            yield self._begin({"type": "tool_use"} | tool_use)
            yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
            self._blocks[-1]["input"] = json.loads(call.arguments)
            yield _event("content_block_stop", index=len(self._blocks) - 1)

    def end(self) -> Iterator[bytes]:
        yield from self._end_block()
        yield _event("message_delta", delta=self._end_of(self._last), usage=_usage(self._last))
        yield _event("message_stop")

    def failed(self, error: dict) -> bytes:
        return named_event(error)

    def _end_of(self, last: TextDelta) -> dict:
        """The fields that say why it ended."""
        if last.stop_string is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_string}
        reason = "tool_use" if self._reader.num_calls else "end_turn"
        return {
            "stop_reason": "max_tokens" if last.finish_reason == "length" else reason,
            "stop_sequence": None,
        }

    def _write(self, kind: str, text: str, empty: dict) -> Iterator[bytes]:
        """More text of the block under way, or of a new one, before which that one ends."""
        if self._kind != kind:
            yield from self._end_block()
            yield self._begin({"type": kind} | empty)
            self._kind = kind
        self._blocks[-1][kind] += text
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _begin(self, block: dict) -> bytes:
        self._blocks.append(block)
        return _event("content_block_start", index=len(self._blocks) - 1, content_block=block)

    def _delta(self, delta: dict) -> bytes:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _end_block(self) -> Iterator[bytes]:
        if self._kind:
            self._kind = ""
            yield _event("content_block_stop", index=len(self._blocks) - 1)


def _usage(delta: TextDelta) -> dict:
    """Tokens so far. Those of the prompt whose KV was there already are counted apart."""
    return {
        "input_tokens": delta.num_prompt_tokens - delta.num_cached_tokens,
        "cache_read_input_tokens": delta.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": delta.num_output_tokens,
    }


def _event(kind: str, **data: object) -> bytes:
    return named_event({"type": kind} | data)
