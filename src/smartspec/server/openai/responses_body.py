"""The body of POST /v1/responses, which comes down to that of a chat. Text and functions; nothing is stored."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from smartspec.server.http.body_model import Body, JsonObject, never, only
from smartspec.server.openai.chat_body import MAX_MESSAGES, ChatBody, ConvertibleBody, Message, ReasoningEffort
from smartspec.server.openai.generation_body import SpeculationBody
from smartspec.server.openai.responses_items import InputItem, ResponsesTool, ResponsesToolChoice, to_messages
from smartspec.server.openai.tools import MAX_TOOLS
from smartspec.server.structured.fields import JsonSchema, ResponseFormat

NOTHING_IS_STORED = "nothing is stored here: send the items of the conversation as input"


def _to_items(given: object) -> object:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


class TextFormat(JsonSchema):
    """Like response_format of chats, but flat."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = Field("answer", min_length=1, max_length=64)

    def response_format(self) -> ResponseFormat:
        schema = self.model_dump(by_alias=True, exclude={"type"}) if self.type == "json_schema" else None
        return ResponseFormat(type=self.type, json_schema=schema)


class TextOptions(Body):
    format: TextFormat = TextFormat()
    verbosity: str | None = None  # the model has one


class Reasoning(Body):
    """How much to think. The server has no support for the other options."""

    effort: ReasoningEffort | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class ResponsesBody(ConvertibleBody):
    """POST /v1/responses."""

    model: str | None = None
    input: Annotated[list[InputItem], BeforeValidator(_to_items, json_schema_input_type=str | list[InputItem])] = Field(
        min_length=1, max_length=MAX_MESSAGES
    )
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool = False
    text: TextOptions = TextOptions()
    reasoning: Reasoning = Reasoning()
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    cache_salt: str | None = Field(None, min_length=1, max_length=256)
    speculation: SpeculationBody | None = None
    tools: list[ResponsesTool] = Field([], max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: Annotated[object, never(NOTHING_IS_STORED)] = None
    conversation: Annotated[object, never(NOTHING_IS_STORED)] = None
    prompt: Annotated[object, never("there are no stored prompts here: send its text as instructions")] = None
    # Accepted only with values that request nothing:
    truncation: Annotated[object, only("disabled")] = None
    background: Annotated[object, only(False)] = None
    include: Annotated[object, only([], ["reasoning.encrypted_content"])] = None
    max_tool_calls: int | None = None
    top_logprobs: Annotated[object, only(0)] = None
    stream_options: JsonObject | None = None
    metadata: JsonObject | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: JsonObject | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    def to_chat(self) -> ChatBody:
        items = to_messages(self.input)
        first = [] if self.instructions is None else [Message(role="system", content=self.instructions)]
        names = ("model", "temperature", "top_p", "seed", "stream", "priority", "cache_salt", "speculation")
        same = {name: getattr(self, name) for name in names}
        wanted = self.text.format.response_format()
        choice = self.tool_choice.to_chat() if isinstance(self.tool_choice, ResponsesToolChoice) else self.tool_choice
        return ChatBody(
            messages=first + items,
            max_tokens=self.max_output_tokens,
            response_format=wanted,
            tools=[tool.to_chat() for tool in self.tools],
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning.effort,
            **same,
        )
