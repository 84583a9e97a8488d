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
from smartspec.server.openai.tool_calls import ToolCall, ToolCallReader


async def answer_response(call: Call, body: ResponsesBody, engine: AsyncEngine, metrics: ServerMetrics) -> Response:
    """Generate and answer, like streaming.answer."""
    deltas = await begin(call, engine, metrics)
    answer = _Answer(call, body)
    if call.stream:
        return EventStream(_events(answer, deltas))
    async with aclosing(deltas):
        whole = merge([delta async for delta in deltas])
    text, calls = answer.reader().push(whole.text, True)
    said = [answer.item(new_id("msg"), status_of(whole), [part(text)])] if text or not calls else []
    return JSONResponse(answer.response(whole, said + [call_item(call) for call in calls]))


class _Answer:
    """The objects of one answer."""

    def __init__(self, call: Call, body: ResponsesBody):
        self._offers_tools = bool(body.tools) and body.tool_choice != "none"
        choice = body.tool_choice or ("auto" if body.tools else "none")
        self._head = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": call.model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "text": {"format": {"type": body.text.format.type}},
            "metadata": body.metadata or {},
            "parallel_tool_calls": self._offers_tools,
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.tools],
            "previous_response_id": None,
            "error": None,
            "incomplete_details": None,
        }

    def reader(self) -> "ToolCallReader | NoCalls":
        """Tells text from calls of tools, where there are tools."""
        return ToolCallReader() if self._offers_tools else NoCalls()

    def begun(self) -> dict:
        return self._head | {"status": "in_progress", "output": [], "usage": None}

    def response(self, whole: TextDelta, output: list[dict]) -> dict:
        """whole: all deltas as one."""
        status = status_of(whole)
        counts = usage({0: whole}, 1)
        return self._head | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": output,
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            },
        }

    def item(self, item_id: str, status: str, content: list[dict]) -> dict:
        return {"type": "message", "id": item_id, "role": "assistant", "status": status, "content": content}


class NoCalls:
    """Like ToolCallReader, of text that holds none."""

    def push(self, text: str, is_last: bool) -> tuple[str, list[ToolCall]]:
        return text, []


def new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def status_of(whole: TextDelta) -> str:
    return "incomplete" if whole.finish_reason == "length" else "completed"


def part(text: str) -> dict:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(call: ToolCall) -> dict:
    chat = call.to_json()
    ids = {"id": new_id("fc"), "call_id": chat["id"]}
    return {"type": "function_call", "status": "completed"} | ids | chat["function"]


async def _events(answer: _Answer, deltas: AsyncIterator[TextDelta]) -> AsyncIterator[bytes]:
    output, reader = _Output(answer), answer.reader()
    yield output.event("response.created", response=answer.begun())
    yield output.event("response.in_progress", response=answer.begun())
    seen = []
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                seen.append(delta)
                text, calls = reader.push(delta.text, delta.finish_reason is not None)
                for event in itertools.chain(output.say(text), *map(output.call, calls)):
                    yield event
    except EngineError as error:
        failed = describe(error)[1]["error"]
        yield output.event("error", code=failed["code"], message=failed["message"], param=None)
        return
    whole = merge(seen)
    for event in output.end(status_of(whole)):
        yield event
    response = answer.response(whole, output.items)
    yield output.event(f"response.{response['status']}", response=response)


class _Output:
    """The items of a streamed answer and their events. items: those that are whole."""

    def __init__(self, answer: _Answer):
        self.items: list[dict] = []
        self._answer = answer
        self._numbers = itertools.count()
        self._message_id = ""  # of the message under way
        self._text = ""

    def event(self, kind: str, **data: object) -> bytes:
        data = {"type": kind, "sequence_number": next(self._numbers)} | data
        return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()

    def say(self, text: str, is_needed: bool = False) -> Iterator[bytes]:
        """More text of the message under way, which begins with it. is_needed: it begins without text, too."""
        if not self._message_id and (text or is_needed):
            self._message_id = new_id("msg")
            item = self._answer.item(self._message_id, "in_progress", [])
            yield self.event("response.output_item.added", output_index=len(self.items), item=item)
            yield self.event("response.content_part.added", part=part(""), **self._place)
        if text:
            self._text += text
            yield self.event("response.output_text.delta", delta=text, logprobs=[], **self._place)

    def call(self, call: ToolCall) -> Iterator[bytes]:
        """A call, whole; the message before it ends."""
        yield from self._end_message("completed")
        item = call_item(call)
        place = {"output_index": len(self.items)}
        begun = item | {"status": "in_progress", "arguments": ""}
        of_call = place | {"item_id": item["id"]}
        yield self.event("response.output_item.added", item=begun, **place)
        yield self.event("response.function_call_arguments.delta", delta=item["arguments"], **of_call)
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield self.event("response.function_call_arguments.done", **done, **of_call)
        yield self.event("response.output_item.done", item=item, **place)
        self.items.append(item)

    def end(self, status: str) -> Iterator[bytes]:
        """The end of the message under way. An answer without a call has one, be it empty."""
        if not self.items:
            yield from self.say("", is_needed=True)
        yield from self._end_message(status)

    def _end_message(self, status: str) -> Iterator[bytes]:
        if not self._message_id:
            return
        item = self._answer.item(self._message_id, status, [part(self._text)])
        yield self.event("response.output_text.done", text=self._text, logprobs=[], **self._place)
        yield self.event("response.content_part.done", part=part(self._text), **self._place)
        yield self.event("response.output_item.done", output_index=len(self.items), item=item)
        self.items.append(item)
        self._message_id = self._text = ""

    @property
    def _place(self) -> dict:
        return {"item_id": self._message_id, "output_index": len(self.items), "content_index": 0}
