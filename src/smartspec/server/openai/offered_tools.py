"""Tools that a body offers beside functions: a server of its own would have to run them, such as
web search or a shell.

They are left out, and the functions stay usable. Only a choice that demands one is refused.
"""

from pydantic import BeforeValidator, ValidationInfo, model_validator

from smartspec.server.http.body_model import Body, ignore, is_strict


def functions_of(
    tools: object, info: ValidationInfo, kinds: tuple[str | None, ...] = ("function",)
) -> object:
    """The tools of these kinds, and whatever is no tool at all, which is refused later."""
    if is_strict(info) or not isinstance(tools, list):
        return tools
    kinds_found = [tool.get("type") if isinstance(tool, dict) else None for tool in tools]
    ignore(info, {kind for kind in kinds_found if isinstance(kind, str) and kind not in kinds})
    return [
        tool
        for tool, kind in zip(tools, kinds_found, strict=True)
        if not isinstance(kind, str) or kind in kinds
    ]


def _check_demand(choice: object) -> object:
    if (
        isinstance(choice, dict)
        and isinstance(kind := choice.get("type"), str)
        and kind != "function"
    ):
        raise ValueError(
            f"a tool of type {kind[:64]!r} is demanded, and this server has functions alone"
        )
    return choice


# Raises ValueError where a tool_choice demands what is left out.
CanBeDemanded = BeforeValidator(_check_demand)


class AllowedTools(Body):
    """A body whose tool_choice may be OpenAI's `allowed_tools`: it is read with those tools alone,
    and the choice's mode."""

    @model_validator(mode="before")
    @classmethod
    def _only_allowed_tools(cls, data: object) -> object:
        choice = data.get("tool_choice") if isinstance(data, dict) else None
        if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
            return data
        allowed = choice.get("allowed_tools", choice)  # chats put them into an object of their own
        allowed = allowed if isinstance(allowed, dict) else {}
        names = {_name(tool) for tool in _listed(allowed.get("tools"))}
        tools = [tool for tool in _listed(data.get("tools")) if _name(tool) in names]
        return data | {"tools": tools, "tool_choice": allowed.get("mode", "auto")}


def _listed(tools: object) -> list:
    return tools if isinstance(tools, list) else []


def _name(tool: object) -> str | None:
    """The name of a tool of chats, or of responses."""
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    name = (function if isinstance(function, dict) else tool).get("name")
    return name if isinstance(name, str) else None
