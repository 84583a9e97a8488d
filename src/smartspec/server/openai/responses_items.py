"""The content of a response beside its options: the items of a conversation, and tools. They come
down to those of a chat."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import model_validator

from smartspec.server.http.body_model import Body, Ignored, check_needed
from smartspec.server.http.content import Content
from smartspec.server.openai.chat_body import Message
from smartspec.server.openai.tools import (
    CalledFunction,
    CalledTool,
    Function,
    FunctionChoice,
)

NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
}


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


class ResponsesTool(Function):
    """The same as a tool of chats, but flat."""

    type: Literal["function"]

    def to_chat(self) -> dict:
        return {"type": "function", "function": self.model_dump(exclude={"type"})}


class ResponsesToolChoice(FunctionChoice):
    """tool_choice: this function."""

    type: Literal["function"]

    def to_chat(self) -> dict:
        return {"type": "function", "function": {"name": self.name}}


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
