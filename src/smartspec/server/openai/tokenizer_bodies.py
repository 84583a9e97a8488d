"""The bodies of POST /tokenize and POST /detokenize, which are vLLM's."""

from typing import Annotated, Self

from pydantic import ConfigDict, FailFast, Field, model_validator

from smartspec.server.http.body_model import MAX_FIELDS, Body, JsonObject, given
from smartspec.server.openai.chat_body import MAX_MESSAGES, Message, ReasoningEffort
from smartspec.server.openai.tools import ToolFields


class TokenizeBody(ToolFields):
    """POST /tokenize: a text, or a conversation."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [given("prompt", "string"), given("messages", "array")]})

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], FailFast()] = Field([], max_length=MAX_MESSAGES)
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: JsonObject = Field({}, max_length=MAX_FIELDS)
    reasoning_effort: ReasoningEffort | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("prompt or messages must be given, and not both")
        return self


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], FailFast()]
