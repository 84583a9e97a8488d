"""Calls of tools, read from the text that a model writes."""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from smartspec.server.openai.call_formats import CallFormat

# A string of JSON goes on so far; only a quote ends it well.
_IN_STRING = re.compile(r'(?:[^"\\\x00-\x1f]|\\.)*+', re.DOTALL)


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

    The result does not depend on how the text is cut into pieces, and each character is read a few
    times at most. Held back are only a call that has not ended and a few characters that may begin
    a mark. Calls after max_calls are left out. form: how calls are written. schemas: of the
    arguments of each tool.
    """

    def __init__(self, max_calls: int, form: CallFormat, schemas: Mapping[str, dict]):
        self.num_calls = 0
        self._max_calls = max_calls
        self._form, self._schemas = form, schemas
        self._rest = ""  # not looked at yet: the beginning of a mark, perhaps
        self._call: _Call | None = None  # that has begun
        self._is_begin = form.is_bare  # nothing but spaces has come, and what does may be a call
        self._is_after_call = False  # where spaces and line breaks are no text

    def push(self, text: str, is_last: bool, is_cut: bool = False) -> tuple[str, list[ToolCall]]:
        """New text to show and new calls. Marks around anything but a call are text. is_cut:
        max_tokens has ended the text; a call that has begun by then is left out."""
        text, at = self._rest + text, 0
        shown: list[str] = []
        calls: list[ToolCall] = []
        if self._is_begin and text.strip():
            self._is_begin = False
            self._call = _Call(self._form, "") if text.lstrip()[0] in "{[" else None
        while not self._is_begin:
            if self._call is None:
                mark, end = self._next_mark(text, at)
                shown.append(self._visible(text[at:end]))
                at = end
                if mark is None:
                    break
                self._call, at = _Call(self._form, mark), end + len(mark)
            at = self._call.feed(text, at)
            if not self._call.has_ended:
                break
            self._end_call(shown, calls, self._form.end)
        self._rest = text[at:]
        if is_last:
            self._end_text(shown, calls, is_cut)
        calls = calls[: self._max_calls - self.num_calls]
        self.num_calls += len(calls)
        return "".join(shown), calls

    def _next_mark(self, text: str, at: int) -> tuple[str | None, int]:
        """The mark before the next call and its place; without one, None and the place where one
        might begin."""
        found = [(place, mark) for mark in self._form.begin if (place := text.find(mark, at)) >= 0]
        if found:
            place, mark = min(found)
            return mark, place
        return None, min(begin_of_mark(text, at, mark) for mark in self._form.begin)

    def _end_call(
        self, shown: list[str], calls: list[ToolCall], mark: str, is_cut: bool = False
    ) -> None:
        call, self._call = self._call, None
        text = "".join(call.pieces)
        found, left = self._form.parse(text, self._schemas)
        is_left_out = is_cut and not (found and not left) and self._form.may_begin_call(left)
        if left and not is_left_out:
            found = []
        calls.extend(
            ToolCall(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in found
        )
        self._is_after_call = bool(found) or is_left_out
        if not self._is_after_call:
            shown.append(f"{call.begin}{text}{mark}")

    def _end_text(self, shown: list[str], calls: list[ToolCall], is_cut: bool) -> None:
        rest, self._rest = self._rest, ""
        if self._call is not None:  # some models end after the call, without the mark
            self._end_call(shown, calls, rest, is_cut)
        elif not (
            is_cut
            and any(
                2 * len(rest) > len(mark) and mark.startswith(rest) for mark in self._form.begin
            )
        ):
            shown.append(self._visible(rest))

    def _visible(self, text: str) -> str:
        if self._is_after_call:
            text = text.lstrip()
            self._is_after_call = not text
        return text


class _Call:
    """The text after a mark, as it comes, up to the mark that ends it. Within a string of JSON that
    is the string's."""

    def __init__(self, form: CallFormat, begin: str):
        self.begin = begin
        self.pieces: list[str] = []
        self.has_ended = False
        self._end = form.end
        self._is_json: bool | None = None  # None: nothing but spaces has come
        self._is_quoted = False  # within a string

    def feed(self, text: str, begin: int) -> int:
        """Take more of the text; return the place up to which it has been taken, its end mark
        included."""
        if self._is_json is None and (said := text[begin:].lstrip()):
            self._is_json = said[0] in "{["
        end = self._find_end(text, begin) if self._end else len(text)
        self.pieces.append(text[begin:end])
        return end + len(self._end) * self.has_ended

    def _find_end(self, text: str, at: int) -> int:
        """The place of the end mark; without one, that where one might begin."""
        mark_or_quote = re.compile(f'{re.escape(self._end)}|"')
        while self._is_json:
            if self._is_quoted:
                at = _IN_STRING.match(text, at).end()
                if text[at : at + 2] in ("", "\\"):
                    return at
                self._is_json, self._is_quoted = text[at] == '"', False
                at += 1
            elif (found := mark_or_quote.search(text, at)) and found[0] == '"':
                self._is_quoted, at = True, found.end()
            else:
                break
        found = text.find(self._end, at)
        self.has_ended = found >= 0
        return found if self.has_ended else begin_of_mark(text, at, self._end)


def begin_of_mark(text: str, begin: int, mark: str) -> int:
    """The place, from begin on, at which the end of the text might begin a mark."""
    longest = min(len(text) - begin, len(mark) - 1)
    return next(
        (len(text) - n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), len(text)
    )
