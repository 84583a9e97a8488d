"""The body of POST /v1/chat/completions, and the messages of a conversation."""

import itertools
from typing import Annotated, Literal, Self

from pydantic import FailFast, Field, ValidationError, model_validator

from smartspec.core.sampling_params import MAX_LOGPROBS
from smartspec.server.http.body_model import Body, Ignored
from smartspec.server.http.content import Content
from smartspec.server.http.errors import APIError
from smartspec.server.http.parsing import refusal
from smartspec.server.openai.generation_body import GenerationBody
from smartspec.server.openai.harmless import HarmlessChatFields
from smartspec.server.openai.template_fields import TemplateFields
from smartspec.server.openai.tools import MAX_CALLS, CalledTool, CallGrammar, ToolFields
from smartspec.server.structured.fields import ResponseFormat, StructuredOutputs

MAX_MESSAGES = 4096
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
    def _as_tools(cls, data: object) -> object:
        """OpenAI's older form: function_call of an assistant, role function."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        called = data.get("function_call")
        if data.get("role") == "function":
            data |= {"role": "tool", "tool_call_id": data.get("name")}
        if isinstance(called, dict) and not data.get("tool_calls"):
            data["tool_calls"] = [{"id": called.get("name"), "function": called}]
            del data["function_call"]
        return data

    @model_validator(mode="before")
    @classmethod
    def _content_may_be_elsewhere(cls, data: object) -> object:
        if (
            isinstance(data, dict)
            and data.get("content") is None
            and data.get("role") in MAY_SAY_NOTHING
        ):
            return data | {"content": data.get("refusal") or ""}
        return data

    @model_validator(mode="after")
    def _only_the_assistant_calls(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only the assistant has tool_calls")
        return self


class Prediction(Body):
    """A guess of the answer, which drafts are made of."""

    type: Literal["content"]
    content: Content


class ChatBody(HarmlessChatFields, TemplateFields, ToolFields, GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = None
    prediction: Prediction | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

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
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self

    @model_validator(mode="after")
    def _final_message_can_be_continued(self) -> Self:
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise ValueError("continue_final_message needs the last message to be the assistant's")
        return self


PROMPT_FIELDS = {"messages", *TemplateFields.model_fields, *ToolFields.model_fields}


def read_prompt_fields(fields: dict) -> ChatBody:
    """A body of the fields that make a prompt. Raises APIError for one that is wrong, or is
    another."""
    if other := fields.keys() - PROMPT_FIELDS:
        raise APIError(
            400,
            f"{min(other)} is not about the prompt: use {', '.join(sorted(PROMPT_FIELDS))}",
            min(other),
        )
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        raise refusal(ChatBody, error) from error


class ConvertibleBody(Body):
    """A body of another interface, which comes down to that of a chat."""

    def to_chat(self) -> ChatBody:
        """Raises ValidationError, which names fields of a chat."""
        raise NotImplementedError


def with_one_system_message(messages: list[Message]) -> list[Message]:
    """The same with the system messages at the beginning as one: some chat templates refuse a
    second."""
    leading = list(
        itertools.takewhile(lambda message: message.role in ("system", "developer"), messages)
    )
    if len(leading) < 2:
        return messages
    text = "\n\n".join(message.content for message in leading if message.content)
    return [Message(role="system", content=text), *messages[len(leading) :]]
