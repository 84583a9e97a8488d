"""Calls of tools, read from the text that a model writes."""

import json
import uuid
from dataclasses import dataclass

from smartspec.server.openai.tools import BEGIN, END, MAX_CALLS
from smartspec.server.structured.json_text import JsonPrefix, read_json

MAX_DECODED = 2  # times that arguments may have been encoded as strings


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool."""

    name: str
    arguments: str  # JSON of an object

    def to_json(self) -> dict:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


class ToolCallReader:
    """Takes the text of one choice piece by piece; separates text from calls.

    The result does not depend on how the text is cut into pieces, and each character is read a few times at most. Held
    back are only a call that has not ended and a few characters that may begin a mark. Calls after max_calls are left
    out.
    """

    def __init__(self, max_calls: int = MAX_CALLS):
        self.num_calls = 0
        self._max_calls = max_calls
        self._rest = ""  # not looked at yet: the beginning of a mark, perhaps
        self._call: _Call | None = None  # that has begun
        self._is_after_call = False  # where spaces and line breaks are no text

    def push(self, text: str, is_last: bool) -> tuple[str, list[ToolCall]]:
        """New text to show and new calls. Marks around anything but a call are text."""
        text, at = self._rest + text, 0
        shown: list[str] = []
        calls: list[ToolCall] = []
        while True:
            if self._call is None:
                begin = text.find(BEGIN, at)
                end = begin if begin >= 0 else begin_of_mark(text, at, BEGIN)
                shown.append(self._visible(text[at:end]))
                at = end
                if begin < 0:
                    break
                self._call, at = _Call(), begin + len(BEGIN)
            at = self._call.feed(text, at)
            if not self._call.has_ended:
                break
            self._end_call(shown, calls, END)
        self._rest = text[at:]
        if is_last:
            self._end_text(shown, calls)
        calls = calls[: self._max_calls - self.num_calls]
        self.num_calls += len(calls)
        return "".join(shown), calls

    def _end_call(self, shown: list[str], calls: list[ToolCall], mark: str) -> None:
        text = "".join(self._call.pieces)
        found = parse_calls(text)
        calls.extend(found)
        self._is_after_call = bool(found)
        if not found:
            shown.append(f"{BEGIN}{text}{mark}")
        self._call = None

    def _end_text(self, shown: list[str], calls: list[ToolCall]) -> None:
        if self._call is None:
            shown.append(self._visible(self._rest))
        else:  # some models end after the call, without the mark
            self._call.pieces.append(self._rest)
            self._end_call(shown, calls, "")
        self._rest = ""

    def _visible(self, text: str) -> str:
        if self._is_after_call:
            text = text.lstrip()
            self._is_after_call = not text
        return text


class _Call:
    """The text between the marks, as it comes. An end mark within a string of JSON is the string's."""

    def __init__(self):
        self.pieces: list[str] = []
        self.has_ended = False
        self._json: JsonPrefix | None = JsonPrefix()  # as long as it may be JSON

    def feed(self, text: str, begin: int) -> int:
        """Take more of the text; return the place up to which it has been taken, its end mark included."""
        end = begin
        if self._json is not None:
            end = self._json.feed(text, begin)
            if not END.startswith(text[end : end + len(END)]):
                self._json = None
        if self._json is None:
            found = text.find(END, end)
            end = found if found >= 0 else begin_of_mark(text, end, END)
        self.pieces.append(text[begin:end])
        self.has_ended = text.startswith(END, end)
        return end + len(END) * self.has_ended


def begin_of_mark(text: str, begin: int, mark: str) -> int:
    """The place, from begin on, at which the end of the text might begin a mark."""
    longest = min(len(text) - begin, len(mark) - 1)
    return next((len(text) - n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), len(text))


def parse_calls(text: str) -> list[ToolCall]:
    """The call, or list of calls, that a text is; none if it is anything else, or arguments are no object."""
    try:
        found = read_json(text)
    except ValueError:
        return []
    calls = [_call(each) for each in (found if isinstance(found, list) else [found])]
    return [] if None in calls else calls


def _call(found: object) -> ToolCall | None:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    given = (found.get(name) for name in ("arguments", "parameters"))
    arguments = arguments_object(next((value for value in given if value is not None), None))
    return None if arguments is None else ToolCall(found["name"], json.dumps(arguments, ensure_ascii=False))


def arguments_object(value: object) -> dict | None:
    """The arguments that a model meant: an object, that object's JSON as a string, or nothing. None: none of these."""
    for _ in range(MAX_DECODED):
        if not isinstance(value, str):
            break
        try:
            value = read_json(value) if value.strip() else None
        except ValueError:
            return None
    return {} if value is None else value if isinstance(value, dict) else None
