"""POST /v1/responses: the answer as OpenAI's Responses API has it, whole or as its events."""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing

from fastapi.responses import JSONResponse, Response

from smartspec.engine.runtime.async_engine import AsyncEngine, EngineError
from smartspec.engine.text.stream import TextDelta
from smartspec.server.http.errors import describe
from smartspec.server.live.metrics import ServerMetrics
from smartspec.server.openai.formats import merge, usage
from smartspec.server.openai.responses_body import ResponsesBody
from smartspec.server.openai.responses_output import Output, new_id
from smartspec.server.openai.said import AnswerReader
from smartspec.server.openai.streaming import Call, EventStream, begin
from smartspec.server.openai.thoughts import num_thought_tokens


async def answer_response(
    call: Call, body: ResponsesBody, engine: AsyncEngine, metrics: ServerMetrics
) -> Response:
    """Generate and answer, like streaming.answer."""
    deltas = await begin(call, engine, metrics)
    answer = _Answer(call, body)
    if call.stream:
        return EventStream(_events(answer, deltas), call.headers)
    async with aclosing(deltas):
        whole = merge([delta async for delta in deltas])
    output = Output()
    said = AnswerReader(call.reading).push(whole.text, whole.finish_reason)
    for _ in (*output.say(said), *output.end(status_of(whole))):
        pass  # the events are not sent
    return JSONResponse(answer.response(whole, output.items), headers=call.headers)


class _Answer:
    """The objects of one answer."""

    def __init__(self, call: Call, body: ResponsesBody):
        self.call = call
        choice = body.tool_choice or ("auto" if body.tools else "none")
        self._head = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": call.model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "temperature": call.params.temperature,
            "top_p": call.params.top_p,
            "text": {"format": {"type": body.text.format.type}},
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.tools],
            "store": False,
            "previous_response_id": None,
            "error": None,
            "incomplete_details": None,
        }

    def begun(self) -> dict:
        return self._head | {"status": "in_progress", "output": [], "usage": None}

    def response(self, whole: TextDelta, output: list[dict]) -> dict:
        """whole: all deltas as one."""
        status = status_of(whole)
        return self._head | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"}
            if status == "incomplete"
            else None,
            "output": output,
            "usage": self._usage(whole),
        }

    def _usage(self, whole: TextDelta) -> dict:
        counts, reading = usage({0: whole}, 1), self.call.reading
        num_thought = (
            num_thought_tokens((text for text, _ in whole.pieces), reading.is_open)
            if reading.thinks
            else 0
        )
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": min(num_thought, counts["completion_tokens"])
            },
            "total_tokens": counts["total_tokens"],
        }


def status_of(whole: TextDelta) -> str:
    return "incomplete" if whole.finish_reason == "length" else "completed"


async def _events(answer: _Answer, deltas: AsyncIterator[TextDelta]) -> AsyncIterator[bytes]:
    output, reader = Output(), AnswerReader(answer.call.reading)
    yield output.event("response.created", response=answer.begun())
    yield output.event("response.in_progress", response=answer.begun())
    seen = []
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                seen.append(delta)
                for event in output.say(reader.push(delta.text, delta.finish_reason)):
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
