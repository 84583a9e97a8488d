"""The items of a conversation that a response answers, and the messages of a chat that they come
down to.

Clients send items of kinds that this server does not make itself, too. A call of another tool and
its output are read like those of a function. What says nothing to the model is left out.
"""

import itertools
import json
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import ValidationInfo, model_validator

from smartspec.server.http.body_model import Body, Ignored, check_needed, ignore, is_strict
from smartspec.server.http.content import Content
from smartspec.server.openai.chat_body import Message
from smartspec.server.openai.tools import CalledFunction, CalledTool

NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
}
CALL, OUTPUT = "_call", "_output"
# what a call is made with, in the words of its kind
ARGUMENTS = ("arguments", "input", "action", "operation")


class InputItem(Body):
    """A message, a call of a tool, its output, or a thought; also one that was an output."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None
    id: Ignored = None
    status: Ignored = None
    phase: Ignored = None  # of an answer
    summary: Ignored = None  # of a thought
    encrypted_content: Ignored = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        check_needed(self, f"an item of type {self.type}", NEEDED[self.type])
        return self


def read_items(given: object, info: ValidationInfo) -> object:
    """Items of the types of InputItem; a text is a message. Anything that is no item stays, and is
    refused later."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        return given
    if is_strict(info):
        return [each | {"content": _thought(each)} if _is_thought(each) else each for each in given]
    for thought, after in itertools.pairwise([*given, None]):
        if _is_thought(thought) and not _is_assistants(after):
            ignore(info, {"reasoning"})  # it is that of no message
    return [
        item for each in given for item in (_read(each, info) if isinstance(each, dict) else [each])
    ]


def _read(item: dict, info: ValidationInfo) -> list[dict]:
    kind = item.get("type")
    if kind is None and item.get("role") is None and item.get("id") is not None:
        kind = "item_reference"  # which may leave its type out
    if kind == "function_call":
        return [_call(item, str(item.get("name") or ""))]
    if kind == "function_call_output":
        return [item | {"output": _output(item, info)}]
    if kind == "message" or kind is None:
        says_nothing = item.get("content") is None and item.get("role") == "assistant"
        return [item | {"content": ""} if says_nothing else item]
    if kind == "reasoning":
        return [item | {"content": _thought(item)}]
    return _read_other(item, str(kind), info)


def _read_other(item: dict, kind: str, info: ValidationInfo) -> list[dict]:
    """Messages, calls of tools and their outputs, by the names of their types: custom_tool_call,
    shell_call_output. A call without a call_id is one that its server answered: it is read where
    the answer stands beside it (mcp_call)."""
    ignore(info, {kind})
    if isinstance(item.get("role"), str) and item.get("content") is not None:
        return [item | {"type": "message"}]
    call_id, has_output = item.get("call_id") or item.get("id"), item.get("output") is not None
    output = {"type": "function_call_output", "call_id": call_id, "output": _output(item, info)}
    if not isinstance(call_id, str):
        return []
    if kind.endswith(OUTPUT):
        return [output] if has_output else []
    if kind.endswith(CALL) and (has_output or item.get("call_id")):
        return [
            _call(item, str(item.get("name") or kind.removesuffix(CALL))),
            *([output] if has_output else []),
        ]
    return []


def _call(item: dict, name: str) -> dict:
    """arguments: JSON of an object."""
    field = next((field for field in ARGUMENTS if item.get(field) is not None), "arguments")
    given = item.get(field)
    if field == "input":
        given = {"input": given}
    arguments = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
    call_id = item.get("call_id") or item.get("id")
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": name or None,
        "arguments": arguments,
    }


def _is_thought(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def _is_assistants(item: object) -> bool:
    if not isinstance(item, dict):
        return False
    return item.get("role") == "assistant" or str(item.get("type")).endswith((CALL, "reasoning"))


def _output(item: dict, info: ValidationInfo) -> object:
    """A text or parts; anything else as JSON, but for pictures of a screen."""
    output = item.get("output")
    if isinstance(output, dict) and str(output.get("type")).endswith(("screenshot", "image")):
        ignore(info, {str(output.get("type"))})
        return ""
    is_parts = isinstance(output, list) and all(
        isinstance(part, dict) and "type" in part for part in output
    )
    if output is None or isinstance(output, str) or is_parts:
        return output or ""
    return json.dumps(output, ensure_ascii=False)


def _thought(item: dict) -> str | None:
    """Where a server gave no content, the summary that it gave."""
    content = item.get("content") or item.get("summary")
    if isinstance(content, str):
        return content or None
    parts = (
        [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    )
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str)) or None


def _joined(one: str | None, other: str | None) -> str | None:
    return one if other is None else other if one is None else f"{one}\n{other}"


def to_messages(items: Sequence[InputItem]) -> list[Message]:
    """The items as messages of a chat: calls belong to the assistant's message before them, outputs
    are messages of tools, and a thought is that of the assistant's message after it."""
    messages: list[Message] = []
    names: dict[str | None, str | None] = {}
    thought = None
    for item in items:
        if item.type == "reasoning":
            thought = _joined(thought, item.content)
            continue
        if item.type == "message":
            messages.append(Message(role=item.role, content=item.content))
        elif item.type == "function_call":
            names[item.call_id] = item.name
            if not messages or messages[-1].role != "assistant":
                messages.append(Message(role="assistant", content=""))
            function = CalledFunction(name=item.name, arguments=item.arguments)
            messages[-1].tool_calls.append(CalledTool(id=item.call_id, function=function))
        elif item.type == "function_call_output":
            name = names.get(item.call_id)
            messages.append(
                Message(role="tool", content=item.output, tool_call_id=item.call_id, name=name)
            )
        if thought is not None and messages[-1].role == "assistant":
            messages[-1].reasoning_content = _joined(messages[-1].reasoning_content, thought)
        thought = None
    return messages
