"""The bodies of POST /tokenize and POST /detokenize, which are vLLM's."""

from typing import Annotated, Self

from pydantic import ConfigDict, FailFast, Field, model_validator

from smartspec.server.http.body_model import Body, given
from smartspec.server.openai.chat_body import MAX_MESSAGES, Message
from smartspec.server.openai.template_fields import TemplateFields
from smartspec.server.openai.tools import ToolFields


class TokenizeBody(TemplateFields, ToolFields):
    """POST /tokenize: a text, or a conversation."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [given("prompt", "string"), given("messages", "array")]}
    )

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], FailFast()] = Field([], max_length=MAX_MESSAGES)
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
