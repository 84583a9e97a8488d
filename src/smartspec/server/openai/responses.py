"""POST /v1/responses: the answer as OpenAI's Responses API has it, whole or as its events."""

import itertools
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

from fastapi.responses import JSONResponse, Response

from smartspec.engine.runtime.async_engine import AsyncEngine, EngineError
from smartspec.engine.text.stream import TextDelta
from smartspec.server.http.errors import describe
from smartspec.server.live.metrics import ServerMetrics
from smartspec.server.openai.formats import merge, usage
from smartspec.server.openai.responses_body import ResponsesBody
from smartspec.server.openai.streaming import Call, EventStream, begin

PLACE = {"output_index": 0, "content_index": 0}


async def answer_response(call: Call, body: ResponsesBody, engine: AsyncEngine, metrics: ServerMetrics) -> Response:
    """Generate and answer, like streaming.answer."""
    deltas = await begin(call, engine, metrics)
    answer = _Answer(call, body)
    if call.stream:
        return EventStream(_events(answer, deltas))
    async with aclosing(deltas):
        return JSONResponse(answer.response(merge([delta async for delta in deltas])))


class _Answer:
    """The objects of one answer."""

    def __init__(self, call: Call, body: ResponsesBody):
        self.item_id = f"msg_{uuid.uuid4().hex}"
        self._head = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": call.model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "text": {"format": {"type": body.text.format.type}},
            "metadata": body.metadata or {},
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "previous_response_id": None,
            "error": None,
            "incomplete_details": None,
        }

    def begun(self) -> dict:
        return self._head | {"status": "in_progress", "output": [], "usage": None}

    def response(self, whole: TextDelta) -> dict:
        """whole: all deltas as one."""
        is_cut = whole.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        counts = usage({0: whole}, 1)
        return self._head | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self.item(status, [part(whole.text)])],
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            },
        }

    def item(self, status: str, content: list[dict]) -> dict:
        return {"type": "message", "id": self.item_id, "role": "assistant", "status": status, "content": content}


def part(text: str) -> dict:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def _events(answer: _Answer, deltas: AsyncIterator[TextDelta]) -> AsyncIterator[bytes]:
    numbers = itertools.count()
    yield _event(numbers, "response.created", response=answer.begun())
    yield _event(numbers, "response.in_progress", response=answer.begun())
    yield _event(numbers, "response.output_item.added", output_index=0, item=answer.item("in_progress", []))
    yield _event(numbers, "response.content_part.added", item_id=answer.item_id, part=part(""), **PLACE)
    seen = []
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                seen.append(delta)
                if delta.text:
                    said = {"item_id": answer.item_id, "delta": delta.text, "logprobs": []}
                    yield _event(numbers, "response.output_text.delta", **said, **PLACE)
    except EngineError as error:
        failed = describe(error)[1]["error"]
        yield _event(numbers, "error", code=failed["code"], message=failed["message"], param=None)
        return
    whole = merge(seen)
    for event in _last_events(answer, numbers, whole):
        yield event


def _last_events(answer: _Answer, numbers: Iterator[int], whole: TextDelta) -> Iterator[bytes]:
    response = answer.response(whole)
    done = {"item_id": answer.item_id} | PLACE
    yield _event(numbers, "response.output_text.done", text=whole.text, logprobs=[], **done)
    yield _event(numbers, "response.content_part.done", part=part(whole.text), **done)
    yield _event(numbers, "response.output_item.done", output_index=0, item=response["output"][0])
    yield _event(numbers, f"response.{response['status']}", response=response)


def _event(numbers: Iterator[int], kind: str, **data: object) -> bytes:
    data = {"type": kind, "sequence_number": next(numbers)} | data
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
