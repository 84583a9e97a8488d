"""The fields of a conversation that its chat template sees beside the messages and the tools."""

from typing import Annotated

from pydantic import Field

from smartspec.server.http.body_model import MAX_FIELDS, Body, Ignored, JsonObject

MAX_EFFORT = 32  # characters
# none, minimal, low, medium, high, xhigh or max in OpenAI's client, and new ones.
ReasoningEffort = Annotated[str, Field(pattern=rf"^[\w-]{{1,{MAX_EFFORT}}}$")]
THINKS = {"enabled": True, "adaptive": True, "disabled": False}


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
