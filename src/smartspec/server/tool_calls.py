"""Calls of tools, read from the text that a model writes."""

import json
import uuid
from dataclasses import dataclass

from smartspec.server.tools import BEGIN, END


@dataclass(frozen=True)
class ToolCall:
    """arguments: JSON."""

    name: str
    arguments: str

    def to_json(self) -> dict:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


class ToolCallReader:
    """Takes the text of one choice piece by piece; tells what is said from what is called."""

    def __init__(self):
        self.num_calls = 0
        self._held = ""  # may be the beginning of a call, or is

    def push(self, text: str, is_last: bool) -> tuple[str, list[ToolCall]]:
        """What this piece has brought: text to show, and calls. Marks around what is no call are text."""
        self._held += text
        shown, calls = "", []
        while (begin := self._held.find(BEGIN)) >= 0 and (end := _end_of_call(self._held, begin)) >= 0:
            shown += self._visible(self._held[:begin])
            found = parse_calls(self._held[begin + len(BEGIN) : end])
            shown += "" if found else self._held[begin : end + len(END)]
            calls += found
            self.num_calls += len(found)
            self._held = self._held[end + len(END) :]
        if is_last:
            # Some models end behind the call, without the mark.
            found = parse_calls(self._held[begin + len(BEGIN) :]) if begin >= 0 else []
            calls += found
            self.num_calls += len(found)
            begin = begin if found else len(self._held)
        elif begin < 0:
            begin = _begin_of_mark(self._held)
        shown += self._visible(self._held[:begin])
        self._held = "" if is_last else self._held[begin:]
        return shown, calls

    def _visible(self, text: str) -> str:
        """Line breaks behind calls are no text."""
        return text.lstrip() if self.num_calls else text


def _begin_of_mark(text: str) -> int:
    """Where the end of the text might begin a call."""
    longest = min(len(text), len(BEGIN) - 1)
    return next((len(text) - n for n in range(longest, 0, -1) if BEGIN.startswith(text[-n:])), len(text))


def _end_of_call(text: str, begin: int) -> int:
    """Where the call that begins there ends, -1 if it does not yet. An end mark within a string is the string's."""
    end = text.find(END, begin)
    while end >= 0 and _ends_in_string(text[begin + len(BEGIN) : end]):
        end = text.find(END, end + len(END))
    return end


def _ends_in_string(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except RecursionError:
        pass
    return False


def parse_calls(text: str) -> list[ToolCall]:
    """The call, or list of calls, that a text is; none if it is anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return []
    return [
        ToolCall(call["name"], json.dumps(call.get("arguments", call.get("parameters", {})), ensure_ascii=False))
        for call in calls
    ]
