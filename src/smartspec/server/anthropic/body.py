"""The body of POST /v1/messages, Anthropic's Messages API, which comes down to that of a chat. Text
and tools."""

from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from smartspec.server.anthropic.blocks import Turn, to_messages
from smartspec.server.http.body_model import Body, Ignored, JsonObject
from smartspec.server.http.content import Content
from smartspec.server.openai.chat_body import (
    MAX_MESSAGES,
    ChatBody,
    ConvertibleBody,
    Message,
    ReasoningEffort,
    with_system,
)
from smartspec.server.openai.generation_body import CommonFields
from smartspec.server.openai.offered_tools import functions_of
from smartspec.server.openai.tools import MAX_TOOLS, FunctionName
from smartspec.server.structured.fields import Schema


class MessagesTool(Body):
    """A function."""

    type: Literal["custom"] = "custom"
    name: FunctionName
    description: str | None = None
    input_schema: JsonObject
    strict: Ignored = None
    cache_control: Ignored = None
    eager_input_streaming: Ignored = None

    def to_chat(self) -> dict:
        function = {"name": self.name, "parameters": self.input_schema}
        return {
            "type": "function",
            "function": function | ({"description": self.description} if self.description else {}),
        }


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    def to_chat(self) -> str | dict:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name or ""}}
        return {"any": "required"}.get(self.type, self.type)


class Thinking(Body):
    """The switch for thoughts, a variable of chat templates. Nothing bounds the thought but
    max_tokens."""

    type: str = "enabled"
    budget_tokens: Ignored = None
    display: Ignored = None


class OutputFormat(Body):
    """A JSON schema, which the text is held to."""

    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputConfig(Body):
    effort: ReasoningEffort | None = None
    format: OutputFormat | None = None


def _check_thread(thread: object) -> object:
    if isinstance(thread, dict) and thread.get("type") == "continue":
        raise ValueError(
            "unsupported: nothing is stored here: send the whole conversation as messages"
        )
    return thread


class PromptBody(ConvertibleBody):
    """POST /v1/messages/count_tokens: what makes the prompt."""

    model: str | None = None
    messages: list[Turn] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Content | None = None
    tools: Annotated[
        list[MessagesTool],
        BeforeValidator(
            partial(functions_of, kinds=("custom",)), json_schema_input_type=list[MessagesTool]
        ),
    ] = Field([], max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: OutputFormat | None = None  # the older name of output_config.format
    thread: Annotated[Ignored, BeforeValidator(_check_thread)] = None
    cache_control: Ignored = None

    def to_chat(self) -> ChatBody:
        return ChatBody(**self._of_prompt())

    def _of_prompt(self) -> dict:
        messages = with_system(self.system, to_messages(self.messages))
        last, choice = messages[-1], self.tool_choice
        wanted = self.output_config.format or self.output_format
        return self.common_fields() | {
            "messages": messages if _says_something(last) else messages[:-1],
            # The answer goes on with what the assistant has begun to say.
            "continue_final_message": last.role == "assistant"
            and bool(last.content.strip())
            and not last.tool_calls,
            "tools": [tool.to_chat() for tool in self.tools],
            "tool_choice": None if choice is None else choice.to_chat(),
            "parallel_tool_calls": False
            if choice is not None and choice.disable_parallel_tool_use
            else None,
            "enable_thinking": self.thinking and self.thinking.type != "disabled",
            "reasoning_effort": self.output_config.effort,
            "response_format": wanted and {"type": "json_schema", "schema": wanted.schema_},
        }


def _says_something(message: Message) -> bool:
    """True unless it is the empty message of the assistant's that some clients send after the
    question."""
    return message.role != "assistant" or bool(message.content.strip() or message.tool_calls)


class MessagesBody(PromptBody, CommonFields):
    """POST /v1/messages."""

    max_tokens: int
    top_k: int | None = None
    stop_sequences: list[str] = Field([])
    metadata: Ignored = None
    service_tier: Ignored = None

    def to_chat(self) -> ChatBody:
        return ChatBody(
            **self._of_prompt(),
            max_tokens=self.max_tokens,
            top_k=self.top_k,
            stop=self.stop_sequences,
        )
