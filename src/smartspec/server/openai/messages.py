"""Messages of a conversation as chat templates take them."""

import json
from collections.abc import Sequence

from smartspec.server.openai.chat_body import Message
from smartspec.server.openai.tools import INSTRUCTIONS

ROLES = {"developer": "system"}  # what chat templates know it by
TOOL_RESPONSE = "<tool_response>\n{}\n</tool_response>"


def num_characters(message: Message) -> int:
    thoughts = (message.reasoning_content, message.reasoning)
    texts = (message.content, *filter(None, thoughts), *(call.function.arguments for call in message.tool_calls))
    return sum(map(len, texts))


def _entry(message: Message, content: str) -> dict:
    """Templates read thoughts under either name; most read none."""
    thought = message.reasoning if message.reasoning_content is None else message.reasoning_content
    thoughts = {} if thought is None else {"reasoning_content": thought, "reasoning": thought}
    return {"role": ROLES.get(message.role, message.role), "content": content} | thoughts


def to_template(messages: Sequence[Message]) -> list[dict]:
    """The messages for a template that knows of tools."""
    converted = []
    for message in messages:
        entry = _entry(message, message.content)
        if message.tool_calls:
            entry["tool_calls"] = [call.for_template() for call in message.tool_calls]
        if message.role == "tool":
            entry |= {"tool_call_id": message.tool_call_id or "", "name": message.name or ""}
        converted.append(entry)
    return converted


def to_plain_template(messages: Sequence[Message], tools: list[dict]) -> list[dict]:
    """The messages for a template that knows of no tools: these stand in the system message, calls and their results in
    the text."""
    converted: list[dict] = []
    for message in messages:
        entry = _entry(message, message.content)
        if message.role == "tool":
            entry = {"role": "user", "content": TOOL_RESPONSE.format(message.content)}
        calls = [call.as_text() for call in message.tool_calls]
        entry["content"] = "\n".join([entry["content"]] * bool(entry["content"]) + calls)
        if message.role == "tool" and converted and converted[-1]["role"] == "user":
            converted[-1]["content"] += "\n" + entry["content"]
        else:
            converted.append(entry)
    if tools:
        said = INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if converted[0]["role"] == "system":
            converted[0]["content"] += "\n\n" + said
        else:
            converted.insert(0, {"role": "system", "content": said})
    return converted
