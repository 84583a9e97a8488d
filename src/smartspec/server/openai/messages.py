"""Messages of a conversation as chat templates take them."""

import hashlib
import itertools
import json
from collections import deque
from collections.abc import Sequence

from smartspec.server.openai.call_formats import HERMES, CallFormat
from smartspec.server.openai.chat_body import Message
from smartspec.server.openai.tools import INSTRUCTIONS

ROLES = {"developer": "system"}  # what chat templates know it by
TOOL_RESPONSE = "<tool_response>\n{}\n</tool_response>"


def num_characters(message: Message) -> int:
    thoughts = (message.reasoning_content, message.reasoning)
    texts = (
        message.content,
        *filter(None, thoughts),
        *(call.function.arguments for call in message.tool_calls),
    )
    return sum(map(len, texts))


def _entry(message: Message, content: str) -> dict:
    """Templates read thoughts under either name; most read none."""
    thought = message.reasoning if message.reasoning_content is None else message.reasoning_content
    thoughts = {} if thought is None else {"reasoning_content": thought, "reasoning": thought}
    name = {} if message.name is None else {"name": message.name}
    return {"role": ROLES.get(message.role, message.role), "content": content} | name | thoughts


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


def mended(entries: Sequence[dict], arguments_as_text: bool) -> list[dict]:
    """Entries of to_template for templates that demand more: ids of nine letters and digits
    (Mistral), one call a message (Llama 3), each before its result, and perhaps arguments as text
    (DeepSeek)."""
    found: list[dict] = []
    rest = deque(entries)
    while rest:
        entry = rest.popleft()
        calls, results = entry.get("tool_calls", ()), []
        if not calls:
            found.append(entry)
        while len(calls) > 1 and rest and rest[0]["role"] == "tool":
            results.append(rest.popleft())
        for number, call in enumerate(calls):
            opening = entry if number == 0 else {"role": "assistant", "content": ""}
            found.append(opening | {"tool_calls": [_mended_call(call, arguments_as_text)]})
            found += [each for each in results if each["tool_call_id"] == call["id"]]
            results = [each for each in results if each["tool_call_id"] != call["id"]]
        found += results
    return [
        entry | {"tool_call_id": _short_id(entry["tool_call_id"])}
        if entry["role"] == "tool"
        else entry
        for entry in found
    ]


def _mended_call(call: dict, arguments_as_text: bool) -> dict:
    function = call["function"]
    if arguments_as_text:
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        function = function | {"arguments": arguments}
    return call | {"id": _short_id(call["id"]), "function": function}


def _short_id(call_id: str) -> str:
    is_short = len(call_id) == 9 and call_id.isascii() and call_id.isalnum()
    return call_id if is_short else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def with_written_calls(entries: Sequence[dict], form: CallFormat) -> list[dict]:
    """The same with calls in the text, for templates that write none."""
    written = []
    for entry in entries:
        calls = [call["function"] for call in entry.get("tool_calls", ())]
        written.append(
            entry | {"content": entry["content"] + form.write(calls)} if calls else entry
        )
    return written


def with_own_tools(entries: Sequence[dict], tools: Sequence[dict]) -> list[dict]:
    """The same with the tools in the system message, for templates that read them there."""
    if not tools:
        return list(entries)
    first = entries[0] if entries[0]["role"] == "system" else {"role": "system", "content": ""}
    functions = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    return [first | {"tools": functions}, *entries[entries[0]["role"] == "system" :]]


def without_system(entries: Sequence[dict]) -> list[dict]:
    """The same with the system message in the first one of the user (Gemma)."""
    first, *rest = entries
    if first["role"] != "system" or not rest or rest[0]["role"] != "user":
        return list(entries)
    return [rest[0] | {"content": f"{first['content']}\n\n{rest[0]['content']}"}, *rest[1:]]


def _with_calls_as_text(message: Message) -> dict:
    calls = [call.for_template()["function"] for call in message.tool_calls]
    return _entry(message, "\n".join(filter(None, (message.content, HERMES.write(calls)))))


def to_plain_template(messages: Sequence[Message], tools: list[dict]) -> list[dict]:
    """The messages for a template that knows of no tools: these stand in the system message, calls
    and their results in the text."""
    converted: list[dict] = []
    for are_results, group in itertools.groupby(messages, lambda message: message.role == "tool"):
        if not are_results:
            converted += map(_with_calls_as_text, group)
            continue
        text = "\n".join(TOOL_RESPONSE.format(message.content) for message in group)
        if converted and converted[-1]["role"] == "user":
            converted[-1]["content"] += "\n" + text
        else:
            converted.append({"role": "user", "content": text})
    if tools:
        said = INSTRUCTIONS.format(
            tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        )
        if converted[0]["role"] == "system":
            converted[0]["content"] += "\n\n" + said
        else:
            converted.insert(0, {"role": "system", "content": said})
    return converted
