"""The items of a response, whole or as the events of a stream."""

import itertools
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from smartspec.server.openai.said import Said
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


def new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def call_item(call: ToolCall) -> dict:
    chat = call.to_json()
    ids = {"id": new_id("fc"), "call_id": chat["id"]}
    return {"type": "function_call", "status": "completed"} | ids | chat["function"]


class Output:
    """The items of an answer and their events. items: those that are whole."""

    def __init__(self):
        self.items: list[dict] = []
        self._numbers = itertools.count()
        self._kind = MESSAGE  # of the item under way
        self._item_id = ""  # of that; empty: none is under way
        self._text = ""

    def event(self, kind: str, **data: object) -> bytes:
        data = {"type": kind, "sequence_number": next(self._numbers)} | data
        return (
            f"event: {kind}\ndata: "
            f"{json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"
        ).encode()

    def say(self, said: Said) -> Iterator[bytes]:
        """A piece of the answer: more text of the item under way, or a new item, after which that
        one ends."""
        if said.thought:
            yield from self._write(REASONING, said.thought)
        if said.text:
            yield from self._write(MESSAGE, said.text)
        for call in said.calls:
            yield from self._call(call)

    def end(self, status: str) -> Iterator[bytes]:
        """The end of the item under way. An answer that says nothing is an empty message."""
        if not self.items and not self._item_id:
            yield from self._write(MESSAGE, "")
        yield from self._end_item(status)

    def _write(self, kind: TextKind, text: str) -> Iterator[bytes]:
        if self._kind is not kind:
            yield from self._end_item("completed")
        if not self._item_id:
            self._kind, self._item_id = kind, new_id(kind.id_prefix)
            item = kind.whole(self._item_id, "in_progress")
            yield self.event("response.output_item.added", output_index=len(self.items), item=item)
            yield self.event("response.content_part.added", part=kind.part_of(""), **self._place)
        if text:
            self._text += text
            yield self.event(
                f"response.{kind.part}.delta", delta=text, **kind.of_event, **self._place
            )

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        """A call, whole."""
        yield from self._end_item("completed")
        item = call_item(call)
        place = {"output_index": len(self.items)}
        begun = item | {"status": "in_progress", "arguments": ""}
        of_call = place | {"item_id": item["id"]}
        yield self.event("response.output_item.added", item=begun, **place)
        yield self.event(
            "response.function_call_arguments.delta", delta=item["arguments"], **of_call
        )
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield self.event("response.function_call_arguments.done", **done, **of_call)
        yield self.event("response.output_item.done", item=item, **place)
        self.items.append(item)

    def _end_item(self, status: str) -> Iterator[bytes]:
        if not self._item_id:
            return
        kind, text = self._kind, self._text
        item = kind.whole(self._item_id, status, text)
        yield self.event(f"response.{kind.part}.done", text=text, **kind.of_event, **self._place)
        yield self.event("response.content_part.done", part=kind.part_of(text), **self._place)
        yield self.event("response.output_item.done", output_index=len(self.items), item=item)
        self.items.append(item)
        self._item_id = self._text = ""

    @property
    def _place(self) -> dict:
        return {"item_id": self._item_id, "output_index": len(self.items), "content_index": 0}
