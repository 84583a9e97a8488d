"""Tools: what a conversation says about them, and how the model is told to make a call.

The format is the one that Hermes, Qwen and SmolLM2 were trained on, calls between marks in the
text: <tool_call>{"name": ..., "arguments": {...}}</tool_call>. Where a call is demanded
(tool_choice "required", or a function), structured output holds the text to it.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from smartspec.server.http.body_model import Body, Ignored, JsonObject
from smartspec.server.openai.offered_tools import AllowedTools, CanBeDemanded, functions_of
from smartspec.server.structured.fields import JSON_OPTIONS, check_schema_size
from smartspec.server.structured.grammar_worker import ARGUMENTS
from smartspec.server.structured.json_text import read_json

MAX_TOOLS = 128
MAX_CALLS = 128  # in one message
BEGIN, END = "<tool_call>", "</tool_call>"
# For chat templates that know of no tools: the words of Hermes 2 Pro's, shortened.
INSTRUCTIONS = """You may call these functions:
<tools>
{tools}
</tools>
To call one, write its name and arguments as JSON between marks:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class Function(Body):
    name: FunctionName
    description: str | None = None
    parameters: JsonObject = Field({"type": "object"})
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict:
        return {
            "type": "function",
            "function": self.function.model_dump(exclude_none=True, exclude={"strict"}),
        }


class FunctionChoice(Body):
    name: FunctionName


class NamedTool(Body):
    """tool_choice: this function."""

    type: Literal["function"]
    function: FunctionChoice


def _as_text(arguments: object) -> object:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


class CalledFunction(Body):
    """name: whatever the model wrote."""

    name: str
    arguments: Annotated[
        str, BeforeValidator(_as_text, json_schema_input_type=str | JsonObject)
    ] = "{}"


class CalledTool(Body):
    """A call in an earlier message of the assistant's."""

    id: str = ""
    type: Literal["function"] = "function"
    index: Ignored = None  # of a client that put the pieces of a stream together
    function: CalledFunction

    @model_validator(mode="before")
    @classmethod
    def _custom_is_a_function_of_a_text(cls, data: object) -> object:
        custom = (
            data.get("custom") if isinstance(data, dict) and data.get("type") == "custom" else None
        )
        if not isinstance(custom, dict):
            return data
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input", "")}}
        return {"id": data.get("id"), "function": function}

    def for_template(self) -> dict:
        """The form for chat templates: arguments are an object if they can be parsed as one."""
        try:
            arguments = read_json(self.function.arguments or "{}")
        except ValueError:
            arguments = self.function.arguments
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.function.name, "arguments": arguments},
        }


class ToolFields(AllowedTools):
    """The fields of a conversation that are about tools."""

    tools: Annotated[
        list[Tool], BeforeValidator(functions_of, json_schema_input_type=list[Tool])
    ] = Field([], max_length=MAX_TOOLS)
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedTool | None, CanBeDemanded
    ] = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _choice_is_one_of_the_tools(self) -> Self:
        if self.tool_choice == "required" and not self.tools:
            raise ValueError("tool_choice 'required' needs tools")
        if isinstance(self.tool_choice, NamedTool) and not self.demanded_tools:
            raise ValueError(
                f"tool_choice names {self.tool_choice.function.name!r}, which is none of the tools"
            )
        return self

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools that the model is told about."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def demanded_tools(self) -> list[Tool]:
        """Tools of which one must be called; empty if none must."""
        if isinstance(self.tool_choice, NamedTool):
            return [
                tool for tool in self.tools if tool.function.name == self.tool_choice.function.name
            ]
        return self.tools if self.tool_choice == "required" else []

    @property
    def max_calls(self) -> int:
        """Calls that an answer may have."""
        return 1 if self.parallel_tool_calls is False else MAX_CALLS

    @property
    def may_demand_several(self) -> bool:
        """True if the grammar of a demanded call allows more calls after it. Not by default: a
        small model would go on and on. A named function is called once."""
        return self.parallel_tool_calls is True and not isinstance(self.tool_choice, NamedTool)


@dataclass(frozen=True)
class CallGrammar:
    """A call of one of the tools (several: or calls, a line each) or, where given, JSON of the
    schema answer."""

    tools: list[Tool]
    answer: dict | None = None
    several: bool = False

    def definition(self) -> str:
        """Raises ValueError for schemas that are too long."""
        calls = rf'call ("\n" call){{0,{MAX_CALLS - 1}}}' if self.several else "call"
        # Each schema is a grammar of its own, so that references inside it hold.
        rules, schemas = [f"start: {calls}"], {}
        if self.answer is not None:
            rules = [f"start: {calls} | @answer"]
            schemas["answer"] = self.answer | {"x-guidance": JSON_OPTIONS}
        names = []
        for number, tool in enumerate(self.tools):
            opening = json.dumps(
                f'{BEGIN}\n{{"name": {json.dumps(tool.function.name)}, "arguments": '
            )
            closing = json.dumps(f"}}\n{END}")
            names.append(f"call_{number}")
            rules.append(f"call_{number}: {opening} @{ARGUMENTS}{number} {closing}")
            # What satisfies one alternative of a oneOf may satisfy another: no grammar counts them.
            options = JSON_OPTIONS | {"coerce_one_of": True}
            schemas[f"{ARGUMENTS}{number}"] = tool.function.parameters | {"x-guidance": options}
        lark = "\n".join([*rules, f"call: {' | '.join(names)}"])
        parts = [{"name": name, "json_schema": schema} for name, schema in schemas.items()]
        text = json.dumps({"grammars": [{"name": "calls", "lark_grammar": lark}, *parts]})
        check_schema_size(text)
        return text
