"""The body of POST /v1/completions."""

from typing import Annotated, Self

from pydantic import (
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from smartspec.server.openai.generation_body import GenerationBody
from smartspec.server.openai.harmless import NoList, NotDemanded, NoText

PROMPT_SHAPES = (
    "must be a string, a list of strings, a list of token ids or a list of such lists, and none of "
    "them empty"
)


Text = Annotated[str, Field(min_length=1)]
TokenIds = Annotated[list[int], Field(min_length=1, fail_fast=True)]
Prompts = Text | TokenIds | Annotated[list[Text | TokenIds], Field(min_length=1, fail_fast=True)]


def _to_prompts(value: object, read: ValidatorFunctionWrapHandler) -> list[str | list[int]]:
    try:
        prompts = read(value)
    except ValidationError as error:
        raise ValueError(PROMPT_SHAPES) from error
    return [prompts] if isinstance(prompts, str) or isinstance(prompts[0], int) else prompts


class CompletionBody(GenerationBody):
    """POST /v1/completions. prompt: one or several prompts, each a text or a list of token ids."""

    prompt: Annotated[Prompts, WrapValidator(_to_prompts)]
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool = True
    suffix: NoText = None
    tools: NoList = None
    tool_choice: NotDemanded = None

    @property
    def num_prompt_top(self) -> int | None:
        if self.echo and self.logprobs is not None:
            return max(self.logprobs, self.prompt_logprobs or 0)
        # An echo without output computes something of the prompt, or nothing would be left to do.
        return (
            0
            if self.echo and self.max_tokens == 0 and self.prompt_logprobs is None
            else self.prompt_logprobs
        )

    @model_validator(mode="after")
    def _echoed_logprobs_are_not_streamed(self) -> Self:
        if self.stream and self.echo and self.logprobs is not None:
            raise ValueError("logprobs with echo needs stream to be false")
        return self
