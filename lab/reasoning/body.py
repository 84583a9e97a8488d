"""The body of POST /v1/reasoning/chat/completions: a chat, and how its steps are speculated on."""

from typing import Literal, Self

from pydantic import Field, model_validator

from smartspec.server.http.body_model import Body
from smartspec.server.openai.chat_body import ChatBody

MAX_TOKENS = 8192  # of an answer
# Options of chats that answers here do not have.
LEFT_OUT = (
    "stream",
    "logprobs",
    "prompt_logprobs",
    "tools",
    "stop",
    "prediction",
    "logit_bias",
    "bad_words",
)


class ReasoningOptions(Body):
    """step_tokens: most tokens of a step. threshold: score from which a step of the small model
    stays, for spec-reason."""

    method: Literal["spec-reason", "speculative-thinking"] = "spec-reason"
    step_tokens: int = Field(512, ge=1, le=MAX_TOKENS)
    threshold: int = Field(7, ge=0, le=9)


class ReasoningBody(ChatBody):
    reasoning_speculation: ReasoningOptions = ReasoningOptions()  # type: ignore[assignment]

    @model_validator(mode="after")
    def _is_one_plain_answer(self) -> Self:
        for name in (*self.grammars(), *(name for name in LEFT_OUT if getattr(self, name))):
            raise ValueError(
                f"{name} does not go together with speculation on reasoning steps: leave it out"
            )
        if self.n != 1:
            raise ValueError(f"n must be 1 with speculation on reasoning steps, got {self.n}")
        return self
