"""The bodies of POST /v1/chat/completions, /tokenize and /detokenize, and the messages of a
conversation."""

import itertools
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, FailFast, Field, ValidationError, model_validator

from smartspec.core.sampling_params import MAX_LOGPROBS
from smartspec.server.http.body_model import (
    MAX_FIELDS,
    Body,
    Ignored,
    JsonObject,
    never,
)
from smartspec.server.http.content import Content
from smartspec.server.http.parsing import refusal
from smartspec.server.openai.generation_body import CommonFields, GenerationBody
from smartspec.server.openai.harmless import NoList, NotDemanded, Off
from smartspec.server.openai.tools import MAX_CALLS, CalledTool, CallGrammar, ToolFields
from smartspec.server.structured.fields import ResponseFormat, StructuredOutputs

MAX_MESSAGES = 4096
MAX_EFFORT = 32  # characters
# none, minimal, low, medium, high, xhigh or max in OpenAI's client, and new ones.
ReasoningEffort = Annotated[str, Field(pattern=rf"^[\w-]{{1,{MAX_EFFORT}}}$")]
THINKS = {"enabled": True, "adaptive": True, "disabled": False}
MAY_SAY_NOTHING = ("assistant", "tool", "function")


class Message(Body):
    """content may be left out by an assistant, and by a tool that returned nothing. A refusal is
    what was said."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content
    name: str | None = None
    tool_calls: list[CalledTool] = Field([], max_length=MAX_CALLS)
    tool_call_id: str | None = None
    reasoning_content: str | None = None  # what the assistant thought before it said this
    reasoning: str | None = None  # the same: vLLM's newer name
    refusal: str | None = None
    annotations: Ignored = None
    provider_specific_fields: Ignored = None  # LiteLLM's own notes

    @model_validator(mode="before")
    @classmethod
    def _in_todays_form(cls, data: object) -> object:
        """Content may be elsewhere. OpenAI's older form: function_call of an assistant, role
        function."""
        if not isinstance(data, dict):
            return data
        data, role, called = dict(data), data.get("role"), data.get("function_call")
        if data.get("content") is None and role in MAY_SAY_NOTHING:
            data["content"] = data.get("refusal") or ""
        if role == "function":
            data |= {"role": "tool", "tool_call_id": data.get("name")}
        if isinstance(called, dict) and not data.get("tool_calls"):
            data["tool_calls"] = [{"id": called.get("name"), "function": called}]
            del data["function_call"]
        return data

    @model_validator(mode="after")
    def _only_the_assistant_calls(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only the assistant has tool_calls")
        return self


class TemplateFields(Body):
    """The fields that say in several ways whether and how much to think. What of them is not
    understood is ignored."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: JsonObject = Field({}, max_length=MAX_FIELDS)
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: Ignored = None  # of clients of Qwen
    # of Anthropic, DeepSeek, GLM and Kimi: {"type": "enabled"} or "disabled"
    thinking: Ignored = None
    reasoning: Ignored = None  # of OpenRouter: {"effort": "low", "enabled": true}

    def template_variables(self) -> dict:
        """The variables of the chat template. Those of chat_template_kwargs go first."""
        thinking = self.thinking if isinstance(self.thinking, dict) else {}
        reasoning = self.reasoning if isinstance(self.reasoning, dict) else {}
        variables: dict = {}
        for thinks in (
            reasoning.get("enabled"),
            THINKS.get(str(thinking.get("type"))),
            self.enable_thinking,
        ):
            if isinstance(thinks, bool):
                variables["enable_thinking"] = thinks
        effort = self.reasoning_effort or reasoning.get("effort")
        if isinstance(effort, str) and len(effort) <= MAX_EFFORT:
            variables["reasoning_effort"] = effort
        return variables | self.chat_template_kwargs


Messages = Annotated[list[Message], FailFast()]


class Prediction(Body):
    """A guess of the answer, which drafts are made of."""

    type: Literal["content"]
    content: Content


class ChatBody(TemplateFields, ToolFields, GenerationBody):
    """POST /v1/chat/completions."""

    messages: Messages = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = None
    prediction: Prediction | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    verbosity: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    functions: NoList = None
    function_call: NotDemanded = None
    echo: Off = None
    add_special_tokens: Off = None
    documents: NoList = None
    chat_template: Annotated[object, never("the template is the model's own")] = None
    reasoning_speculation: Annotated[
        object, never("use /v1/reasoning/chat/completions, with --speculator")
    ] = None

    def grammars(self) -> dict[str, ResponseFormat | StructuredOutputs | CallGrammar]:
        """A call that is demanded, or either a call or an answer of the format."""
        requested = super().grammars()
        if self.demanded_tools:
            requested["tool_choice"] = CallGrammar(
                self.demanded_tools, several=self.may_demand_several
            )
        elif self.offered_tools and "response_format" in requested:
            requested["response_format"] = CallGrammar(
                self.offered_tools, self.response_format.schema, self.may_demand_several
            )
        return requested

    @model_validator(mode="after")
    def _has_what_options_need(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise ValueError("continue_final_message needs the last message to be the assistant's")
        return self

    @model_validator(mode="after")
    def _newer_name_goes_first(self) -> Self:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return self


PROMPT_FIELDS = {"messages", *TemplateFields.model_fields, *ToolFields.model_fields}


def read_prompt_fields(fields: dict) -> ChatBody:
    """A body of the fields that make a prompt. Raises ValueError for one that is wrong, or is
    another."""
    if other := fields.keys() - PROMPT_FIELDS:
        raise ValueError(
            f"{min(other)} is not about the prompt: use {', '.join(sorted(PROMPT_FIELDS))}"
        )
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        raise ValueError(refusal(ChatBody, error).message) from error


class ConvertibleBody(Body):
    """A body of another interface, which comes down to that of a chat."""

    def common_fields(self) -> dict:
        """What was sent of the fields that a chat has too."""
        return self.model_dump(include=set(CommonFields.model_fields), exclude_unset=True)

    def to_chat(self) -> ChatBody:
        """Raises ValidationError, which names fields of a chat."""
        raise NotImplementedError


def with_system(text: str | None, messages: list[Message]) -> list[Message]:
    """The messages after a system message, if there is a text for it. The system messages at the
    beginning become one: some chat templates refuse a second."""
    if text is not None:
        messages = [Message(role="system", content=text), *messages]
    leading = list(
        itertools.takewhile(lambda message: message.role in ("system", "developer"), messages)
    )
    if len(leading) < 2:
        return messages
    text = "\n\n".join(message.content for message in leading if message.content)
    return [Message(role="system", content=text), *messages[len(leading) :]]


class TokenizeBody(TemplateFields, ToolFields):
    """POST /tokenize: a text, or a conversation."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
                {
                    "required": ["messages"],
                    "properties": {"messages": {"type": "array", "minItems": 1}},
                },
            ]
        }
    )

    model: str | None = None
    prompt: str | None = None
    messages: Messages = Field([], max_length=MAX_MESSAGES)
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("prompt or messages must be given, and not both")
        return self


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], FailFast()]
