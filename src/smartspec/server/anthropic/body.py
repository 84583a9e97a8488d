"""The body of POST /v1/messages, Anthropic's Messages API, which comes down to that of a chat. Text and tools."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from smartspec.server.http.body_model import Body, JsonObject, TextPart, join_text_parts
from smartspec.server.openai.chat_body import MAX_MESSAGES, ChatBody, ConvertibleBody, Message, ReasoningEffort
from smartspec.server.openai.generation_body import SpeculationBody
from smartspec.server.openai.tools import MAX_TOOLS, FunctionName

NEEDED = {
    "text": ("text",),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
}


def _without_cache_marks(content: object) -> object:
    """Parts of text with nothing beside it: what is cached here is no choice of the client's."""
    if not isinstance(content, list):
        return content
    ignored = ("cache_control", "citations")
    return join_text_parts(
        [{k: v for k, v in part.items() if k not in ignored} if isinstance(part, dict) else part for part in content]
    )


Text = Annotated[str, BeforeValidator(_without_cache_marks, json_schema_input_type=str | list[TextPart])]


class Block(Body):
    """A part of a turn. What stands beside these fields for the sake of caches and citations is ignored."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str | None = None
    id: str | None = None
    name: FunctionName | None = None
    input: JsonObject = Field({})
    tool_use_id: str | None = None
    content: Text = ""
    is_error: bool = False
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    cache_control: JsonObject | None = None
    citations: list[JsonObject] | None = None
    caller: JsonObject | None = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        if lacking := [name for name in NEEDED[self.type] if getattr(self, name) is None]:
            raise ValueError(f"a block of type {self.type} needs {lacking[0]}")
        return self


def _to_blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class Turn(Body):
    """What one side said."""

    role: Literal["user", "assistant"]
    content: Annotated[list[Block], BeforeValidator(_to_blocks, json_schema_input_type=str | list[Block])]


class MessagesTool(Body):
    """A function; tools that run on Anthropic's side are refused by their type."""

    type: Literal["custom"] = "custom"
    name: FunctionName
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None
    cache_control: JsonObject | None = None
    eager_input_streaming: bool | None = None

    def to_chat(self) -> dict:
        function = {"name": self.name, "parameters": self.input_schema}
        return {
            "type": "function",
            "function": function | ({"description": self.description} if self.description else {}),
        }


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool = False

    def to_chat(self) -> str | dict:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name or ""}}
        return {"any": "required"}.get(self.type, self.type)


class Thinking(Body):
    """Whether the model thinks: a variable of chat templates. Nothing bounds the thought but max_tokens."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputConfig(Body):
    effort: ReasoningEffort | None = None


class PromptBody(ConvertibleBody):
    """POST /v1/messages/count_tokens: what makes the prompt."""

    model: str | None = None
    messages: list[Turn] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Text | None = None
    tools: list[MessagesTool] = Field([], max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    cache_control: JsonObject | None = None

    def to_chat(self) -> ChatBody:
        return ChatBody(**self._of_prompt())

    def _of_prompt(self) -> dict:
        first = [] if self.system is None else [Message(role="system", content=self.system)]
        choice = self.tool_choice
        thinks = None if self.thinking is None else {"enable_thinking": self.thinking.type != "disabled"}
        return {
            "model": self.model,
            "messages": first + to_messages(self.messages),
            "tools": [tool.to_chat() for tool in self.tools],
            "tool_choice": None if choice is None else choice.to_chat(),
            "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
            "chat_template_kwargs": thinks,
            "reasoning_effort": self.output_config.effort,
        }


class MessagesBody(PromptBody):
    """POST /v1/messages."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_sequences: list[str] = Field([])
    stream: bool = False
    seed: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    speculation: SpeculationBody | None = None
    # Ignored:
    metadata: JsonObject | None = None
    service_tier: str | None = None

    def to_chat(self) -> ChatBody:
        names = (
            "max_tokens",
            "temperature",
            "top_p",
            "top_k",
            "stream",
            "seed",
            "priority",
            "cache_salt",
            "speculation",
        )
        return ChatBody(**self._of_prompt(), **{name: getattr(self, name) for name in names}, stop=self.stop_sequences)


def to_messages(turns: Sequence[Turn]) -> list[Message]:
    """As a chat has them."""
    names = {block.id: block.name for turn in turns for block in turn.content if block.type == "tool_use"}
    return [message for turn in turns for message in _messages_of(turn, names)]


def _messages_of(turn: Turn, names: dict[str | None, str | None]) -> Iterator[Message]:
    """Results of tools come before the text of their turn."""
    results = [block for block in turn.content if block.type == "tool_result"]
    for block in results:
        name = names.get(block.tool_use_id)
        yield Message(role="tool", content=block.content, tool_call_id=block.tool_use_id, name=name)
    text = "".join(block.text for block in turn.content if block.type == "text")
    thought = "".join(block.thinking for block in turn.content if block.type == "thinking")
    calls = [
        {"id": block.id, "function": {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}}
        for block in turn.content
        if block.type == "tool_use"
    ]
    if turn.role == "assistant":
        yield Message(role="assistant", content=text, tool_calls=calls, reasoning_content=thought or None)
    elif text or not results:
        yield Message(role="user", content=text)
