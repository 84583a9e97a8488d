"""The body of POST /v1/responses, which comes down to that of a chat. Text and functions; nothing
is stored."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from smartspec.server.http.body_model import Body, Ignored, JsonObject, never, only
from smartspec.server.openai.chat_body import (
    MAX_MESSAGES,
    ChatBody,
    ConvertibleBody,
    ReasoningEffort,
    with_system,
)
from smartspec.server.openai.generation_body import CommonFields
from smartspec.server.openai.harmless import AccountFields
from smartspec.server.openai.offered_tools import AllowedTools, CanBeDemanded, functions_of
from smartspec.server.openai.responses_items import InputItem, read_items, to_messages
from smartspec.server.openai.tools import MAX_TOOLS, Function, FunctionChoice
from smartspec.server.structured.fields import JsonSchema, ResponseFormat

LOGPROBS = "message.output_text.logprobs"
NotStored = Annotated[
    object, never("nothing is stored here: send the items of the conversation as input")
]


def _check_include(include: object) -> object:
    if isinstance(include, list) and LOGPROBS in include:
        raise ValueError(f"{LOGPROBS} is not written here: use logprobs of /v1/chat/completions")
    return include


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


class TextFormat(JsonSchema):
    """The same as response_format of chats, but flat."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = Field("answer", min_length=1, max_length=64)

    def response_format(self) -> ResponseFormat:
        schema = (
            self.model_dump(by_alias=True, exclude={"type"}) if self.type == "json_schema" else None
        )
        return ResponseFormat(type=self.type, json_schema=schema)


class TextOptions(Body):
    format: TextFormat = TextFormat()
    verbosity: Ignored = None  # the model has one


class Reasoning(Body):
    """The amount of thinking. The server has no support for the other options."""

    effort: ReasoningEffort | None = None
    summary: Ignored = None
    generate_summary: Ignored = None
    context: Ignored = None
    mode: Ignored = None


class ResponsesBody(ConvertibleBody, AllowedTools, CommonFields, AccountFields):
    """POST /v1/responses."""

    input: Annotated[
        list[InputItem], BeforeValidator(read_items, json_schema_input_type=str | list[InputItem])
    ] = Field(min_length=1, max_length=MAX_MESSAGES)
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextOptions = TextOptions()
    reasoning: Reasoning = Reasoning()
    tools: Annotated[
        list[ResponsesTool],
        BeforeValidator(functions_of, json_schema_input_type=list[ResponsesTool]),
    ] = Field([], max_length=MAX_TOOLS)
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ResponsesToolChoice | None, CanBeDemanded
    ] = None
    parallel_tool_calls: bool | None = None
    previous_response_id: NotStored = None
    conversation: NotStored = None
    prompt: Annotated[
        object, never("there are no stored prompts here: send its text as instructions")
    ] = None
    top_logprobs: Annotated[object, only(0)] = None
    metadata: JsonObject | None = None  # given back
    # Ignored: nothing is cut, stored, or done in the background.
    truncation: Ignored = None
    background: Ignored = None
    include: Annotated[object, AfterValidator(_check_include)] = None
    max_tool_calls: Ignored = None
    stream_options: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None

    def to_chat(self) -> ChatBody:
        choice = (
            self.tool_choice.to_chat()
            if isinstance(self.tool_choice, ResponsesToolChoice)
            else self.tool_choice
        )
        return ChatBody(
            messages=with_system(self.instructions, to_messages(self.input)),
            max_tokens=self.max_output_tokens,
            response_format=self.text.format.response_format(),
            tools=[tool.to_chat() for tool in self.tools],
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning.effort,
            **self.common_fields(),
        )
