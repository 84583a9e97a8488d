"""An answer as Anthropic's Messages API has it, whole or as its events."""

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

from fastapi.responses import JSONResponse, Response

from smartspec.engine.runtime.async_engine import AsyncEngine, EngineError
from smartspec.engine.text.stream import TextDelta
from smartspec.server.http.errors import anthropic_error, describe
from smartspec.server.live.metrics import ServerMetrics
from smartspec.server.openai.formats import merge
from smartspec.server.openai.said import AnswerReader, Said
from smartspec.server.openai.streaming import Call, EventStream, begin
from smartspec.server.openai.tool_calls import ToolCall


async def answer_message(
    call: Call, engine: AsyncEngine, metrics: ServerMetrics, request_id: str | None
) -> Response:
    """Generate and answer, like openai.streaming.answer. request_id: for errors in a stream."""
    deltas = await begin(call, engine, metrics)
    head = {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": call.model,
    }
    if call.stream:
        return EventStream(_events(call, head, deltas, request_id), call.headers)
    async with aclosing(deltas):
        whole = merge([delta async for delta in deltas])
    said = AnswerReader(call.reading).push(whole.text, whole.finish_reason)
    thought = (
        [{"type": "thinking", "thinking": said.thought, "signature": ""}] if said.thought else []
    )
    text = [{"type": "text", "text": said.text}] if said.text else []
    content = (
        thought
        + text
        + [_tool_use(call) | {"input": _input(call.arguments)} for call in said.calls]
    )
    message = head | {"content": content, "usage": _usage(whole)} | _end(whole, len(said.calls))
    return JSONResponse(message, headers=call.headers)


def _tool_use(call: ToolCall) -> dict:
    return {
        "type": "tool_use",
        "id": f"toolu_{uuid.uuid4().hex[:24]}",
        "name": call.name,
        "input": {},
    }


def _input(arguments: str) -> dict:
    """An object, as Anthropic's clients need it: a text that is none becomes a field of one."""
    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {"arguments": arguments}


def _usage(delta: TextDelta) -> dict:
    """Tokens so far. Those of the prompt whose KV was there already are counted apart."""
    return {
        "input_tokens": delta.num_prompt_tokens - delta.num_cached_tokens,
        "cache_read_input_tokens": delta.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": delta.num_output_tokens,
    }


def _end(whole: TextDelta, num_calls: int) -> dict:
    """The fields that say why it ended."""
    if whole.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": whole.stop_string}
    reason = (
        "max_tokens" if whole.finish_reason == "length" else "tool_use" if num_calls else "end_turn"
    )
    return {"stop_reason": reason, "stop_sequence": None}


def _event(kind: str, **data: object) -> bytes:
    text = json.dumps({"type": kind} | data, ensure_ascii=False, separators=(",", ":"))
    return f"event: {kind}\ndata: {text}\n\n".encode()


async def _events(
    call: Call, head: dict, deltas: AsyncIterator[TextDelta], request_id: str | None
) -> AsyncIterator[bytes]:
    blocks, reader, last = _Blocks(), AnswerReader(call.reading), None
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                if last is None:
                    nothing = {"content": [], "stop_reason": None, "stop_sequence": None}
                    yield _event(
                        "message_start",
                        message=head | nothing | {"usage": _usage(delta) | {"output_tokens": 0}},
                    )
                last = delta
                for event in blocks.say(reader.push(delta.text, delta.finish_reason)):
                    yield event
    except EngineError as error:
        status, body, _ = describe(error)
        yield f"event: error\ndata: {json.dumps(anthropic_error(status, body, request_id))}\n\n".encode()  # noqa: E501
        return
    for event in blocks.end():
        yield event
    yield _event("message_delta", delta=_end(last, reader.num_calls), usage=_usage(last))
    yield _event("message_stop")


class _Blocks:
    """The content of a streamed answer as its events."""

    def __init__(self):
        self._index = -1  # of the newest block
        self._kind = ""  # of the block under way, which holds text; empty: none is

    def say(self, said: Said) -> Iterator[bytes]:
        if said.thought:
            yield from self._write("thinking", said.thought, {"thinking": "", "signature": ""})
        if said.text:
            yield from self._write("text", said.text, {"text": ""})
        for call in said.calls:
            yield from self.end()
            yield self._begin(_tool_use(call))
            yield self._delta(
                {
                    "type": "input_json_delta",
                    "partial_json": json.dumps(_input(call.arguments), ensure_ascii=False),
                }
            )
            yield _event("content_block_stop", index=self._index)

    def end(self) -> Iterator[bytes]:
        """The end of the block under way."""
        if self._kind:
            self._kind = ""
            yield _event("content_block_stop", index=self._index)

    def _write(self, kind: str, text: str, empty: dict) -> Iterator[bytes]:
        if self._kind != kind:
            yield from self.end()
            yield self._begin({"type": kind} | empty)
            self._kind = kind
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _begin(self, block: dict) -> bytes:
        self._index += 1
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)
