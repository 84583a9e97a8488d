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
    with_one_system_message,
)
from smartspec.server.openai.generation_body import Seed, SpeculationBody
from smartspec.server.openai.offered_tools import functions_of
from smartspec.server.openai.template_fields import ReasoningEffort
from smartspec.server.openai.tools import MAX_TOOLS, FunctionName
from smartspec.server.structured.fields import JsonSchema, ResponseFormat, Schema

NOTHING_IS_STORED = "nothing is stored here: send the whole conversation as messages"


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
        raise ValueError(f"unsupported: {NOTHING_IS_STORED}")
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
        first = [] if self.system is None else [Message(role="system", content=self.system)]
        messages = with_one_system_message(first + to_messages(self.messages))
        last, choice = messages[-1], self.tool_choice
        thinks = (
            None if self.thinking is None else {"enable_thinking": self.thinking.type != "disabled"}
        )
        return {
            "model": self.model,
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
            "chat_template_kwargs": thinks,
            "reasoning_effort": self.output_config.effort,
            "response_format": self._response_format(),
        }

    def _response_format(self) -> ResponseFormat | None:
        wanted = self.output_config.format or self.output_format
        if wanted is None:
            return None
        return ResponseFormat(
            type="json_schema", json_schema=JsonSchema(name="answer", schema=wanted.schema_)
        )


def _says_something(message: Message) -> bool:
    """True unless it is the empty message of the assistant's that some clients send after the
    question."""
    return message.role != "assistant" or bool(message.content.strip() or message.tool_calls)


class MessagesBody(PromptBody):
    """POST /v1/messages."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_sequences: list[str] = Field([])
    stream: bool = False
    seed: Seed = None
    priority: int = 0
    cache_salt: str | None = None
    speculation: SpeculationBody | None = None
    metadata: Ignored = None
    service_tier: Ignored = None

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
        said = {name: getattr(self, name) for name in names if name in self.model_fields_set}
        return ChatBody(**self._of_prompt(), **said, stop=self.stop_sequences)
