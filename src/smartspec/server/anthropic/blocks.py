"""The turns of a conversation as Anthropic's Messages API has them, and the messages of a chat that
they come down to.

Blocks of text, tools and thoughts are read. What the model would have to see is refused by name.
Blocks of other kinds, such as those of tools that ran on Anthropic's side, are read as text where
they hold one, and left out elsewhere.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from smartspec.server.http.body_model import (
    Body,
    Ignored,
    JsonObject,
    check_needed,
    ignore,
    is_strict,
)
from smartspec.server.http.content import Content, TextPart, text_of_part
from smartspec.server.openai.chat_body import Message
from smartspec.server.structured.json_text import read_json

NEEDED = {
    "text": ("text",),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
    "thinking": (),
    "redacted_thinking": (),
}


def _as_object(given: object) -> object:
    """The object that a tool was called with; a text that is no object is a field of one."""
    if isinstance(given, str):
        try:
            parsed = read_json(given or "{}")
        except ValueError:
            parsed = None
        given = parsed if isinstance(parsed, dict) else {"input": given}
    return given


class Block(Body):
    """A part of a turn."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Annotated[JsonObject, BeforeValidator(_as_object)] = Field({})
    tool_use_id: str | None = None
    content: Content = ""
    is_error: bool = False
    thinking: str = ""
    signature: Ignored = None
    data: Ignored = None
    cache_control: Ignored = None
    citations: Ignored = None
    caller: Ignored = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        check_needed(self, f"a block of type {self.type}", NEEDED[self.type])
        return self


def _to_block(part: object, info: ValidationInfo) -> object:
    """A block of a kind that is not known, as text."""
    kind = part.get("type") if isinstance(part, dict) else None
    if is_strict(info) or not isinstance(kind, str) or kind in NEEDED:
        return part
    return {"type": "text", "text": text_of_part(part, "the block", info)}


def _to_blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Blocks = list[Annotated[Block, BeforeValidator(_to_block)]]


class Turn(Body):
    """A turn of one side, or of the operator in between."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Blocks, BeforeValidator(_to_blocks, json_schema_input_type=str | list[Block | TextPart])
    ]

    @model_validator(mode="after")
    def _tell_what_is_left_out(self, info: ValidationInfo) -> Self:
        """Thoughts that only Anthropic can read; and what is the assistant's, in a turn that is
        not."""
        kinds = {block.type for block in self.content}
        unread = {"redacted_thinking"}
        if self.role != "assistant":
            unread |= {"thinking", "tool_use"}
        ignore(info, kinds & unread)
        return self


def to_messages(turns: Sequence[Turn]) -> list[Message]:
    """The same turns as messages of a chat."""
    names = {
        block.id: block.name for turn in turns for block in turn.content if block.type == "tool_use"
    }
    return [message for turn in turns for message in _messages_of(turn, names)]


def _messages_of(turn: Turn, names: dict[str | None, str | None]) -> Iterator[Message]:
    """Results of tools come before the text of their turn."""
    results = [block for block in turn.content if block.type == "tool_result"]
    for block in results:
        name = names.get(block.tool_use_id)
        yield Message(role="tool", content=block.content, tool_call_id=block.tool_use_id, name=name)
    text = "".join(block.text or "" for block in turn.content if block.type == "text")
    thought = "".join(block.thinking for block in turn.content if block.type == "thinking")
    calls = [
        {"id": block.id, "function": {"name": block.name, "arguments": block.input}}
        for block in turn.content
        if block.type == "tool_use"
    ]
    if turn.role == "assistant":
        yield Message(
            role="assistant", content=text, tool_calls=calls, reasoning_content=thought or None
        )
    elif text or not results:
        yield Message(role=turn.role, content=text)
