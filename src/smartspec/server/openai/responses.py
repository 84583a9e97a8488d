"""The answer of POST /v1/responses as OpenAI's Responses API has it, whole or as its events."""

import itertools
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from smartspec.engine.text.stream import TextDelta
from smartspec.server.http.event_stream import named_event
from smartspec.server.openai.deltas import merge, usage
from smartspec.server.openai.responses_body import ResponsesBody
from smartspec.server.openai.said import AnswerReader
from smartspec.server.openai.streaming import Call
from smartspec.server.openai.thoughts import num_thought_tokens
from smartspec.server.openai.tool_calls import ToolCall


@dataclass(frozen=True)
class TextKind:
    """A kind of item that holds text. item, of_text, of_event: what each item, part and event of it
    has besides."""

    item: dict
    id_prefix: str
    part: str
    of_text: dict
    of_event: dict

    def whole(self, item_id: str, status: str, *texts: str) -> dict:
        return {
            **self.item,
            "id": item_id,
            "status": status,
            "content": [self.part_of(text) for text in texts],
        }

    def part_of(self, text: str) -> dict:
        return {"type": self.part, "text": text} | self.of_text


MESSAGE = TextKind(
    item={"type": "message", "role": "assistant"},
    id_prefix="msg",
    part="output_text",
    of_text={"annotations": [], "logprobs": []},
    of_event={"logprobs": []},
)
REASONING = TextKind(
    item={"type": "reasoning", "summary": []},
    id_prefix="rs",
    part="reasoning_text",
    of_text={},
    of_event={},
)


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


class ResponseFormat:
    """Implements streaming.Format."""

    def __init__(self, call: Call, body: ResponsesBody):
        self._call = call
        self._reader = AnswerReader(call.reading)
        self._deltas: list[TextDelta] = []
        self._numbers = itertools.count()  # of events
        self._items: list[dict] = []  # that are whole
        self._kind = MESSAGE  # of the item under way
        self._item_id = ""  # of that; empty: none is under way
        self._text = ""
        choice = body.tool_choice or ("auto" if body.tools else "none")
        self._head = {
            "id": _new_id("resp"),
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

    def whole(self, choices: Mapping[int, TextDelta]) -> dict:
        for _ in (*self.push(choices[0]), *self.end()):
            pass  # the events are not sent
        return self._response(choices[0])

    def push(self, delta: TextDelta) -> Iterator[bytes]:
        if not self._deltas:
            begun = self._head | {"status": "in_progress", "output": [], "usage": None}
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
        self._deltas.append(delta)
        said = self._reader.push(delta.text, delta.finish_reason)
        if said.thought:
            yield from self._write(REASONING, said.thought)
        if said.text:
            yield from self._write(MESSAGE, said.text)
        for call in said.calls:
            yield from self._tool_call(call)

    def end(self) -> Iterator[bytes]:
        whole = merge(self._deltas)
        status = _status_of(whole)
        if not self._items and not self._item_id:  # an answer that says nothing
            yield from self._write(MESSAGE, "")
        yield from self._end_item(status)
        yield self._event(f"response.{status}", response=self._response(whole))

    def failed(self, error: dict) -> bytes:
        said = {name: error["error"][name] for name in ("code", "message")}
        return self._event("error", **said, param=None)

    def _response(self, whole: TextDelta) -> dict:
        """whole: all deltas as one."""
        status = _status_of(whole)
        cut = {"incomplete_details": {"reason": "max_output_tokens"}}
        return (
            self._head
            | (cut if status == "incomplete" else {})
            | {"status": status, "output": self._items, "usage": self._usage(whole)}
        )

    def _usage(self, whole: TextDelta) -> dict:
        counts, reading = usage({0: whole}, 1), self._call.reading
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

    def _event(self, kind: str, **data: object) -> bytes:
        return named_event({"type": kind, "sequence_number": next(self._numbers)} | data)

    def _write(self, kind: TextKind, text: str) -> Iterator[bytes]:
        """More text of the item under way, or of a new one, before which that one ends."""
        if self._kind is not kind:
            yield from self._end_item("completed")
        if not self._item_id:
            self._kind, self._item_id = kind, _new_id(kind.id_prefix)
            item = kind.whole(self._item_id, "in_progress")
            yield self._event(
                "response.output_item.added", output_index=len(self._items), item=item
            )
            yield self._event("response.content_part.added", part=kind.part_of(""), **self._place)
        if text:
            self._text += text
            yield self._event(
                f"response.{kind.part}.delta", delta=text, **kind.of_event, **self._place
            )

    def _tool_call(self, call: ToolCall) -> Iterator[bytes]:
        """A call, whole."""
        yield from self._end_item("completed")
        chat = call.to_json()
        ids = {"id": _new_id("fc"), "call_id": chat["id"]}
        item = {"type": "function_call", "status": "completed"} | ids | chat["function"]
        place = {"output_index": len(self._items)}
        begun = item | {"status": "in_progress", "arguments": ""}
        of_call = place | {"item_id": item["id"]}
        yield self._event("response.output_item.added", item=begun, **place)
        yield self._event(
            "response.function_call_arguments.delta", delta=item["arguments"], **of_call
        )
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield self._event("response.function_call_arguments.done", **done, **of_call)
        yield self._event("response.output_item.done", item=item, **place)
        self._items.append(item)

    def _end_item(self, status: str) -> Iterator[bytes]:
        if not self._item_id:
            return
        kind, text = self._kind, self._text
        item = kind.whole(self._item_id, status, text)
        yield self._event(f"response.{kind.part}.done", text=text, **kind.of_event, **self._place)
        yield self._event("response.content_part.done", part=kind.part_of(text), **self._place)
        yield self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._item_id = self._text = ""

    @property
    def _place(self) -> dict:
        return {"item_id": self._item_id, "output_index": len(self._items), "content_index": 0}


def _status_of(whole: TextDelta) -> str:
    return "incomplete" if whole.finish_reason == "length" else "completed"
