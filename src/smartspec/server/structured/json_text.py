"""JSON in texts that others wrote: read strictly, and followed as it comes."""

import json
import math
import re

MAX_DEPTH = 100  # of lists and objects in one another; what else reads them stops soon after
_STRING = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"[-+.\w]*", re.ASCII)
_ESCAPED = '"\\/bfnrtu'
_OPENED_BY = {"}": "{", "]": "["}


def read_json(text: str) -> object:
    """The value of a JSON text. Raises ValueError also for what json.loads accepts: NaN, numbers
    that no float holds, halves of surrogate pairs, and more than MAX_DEPTH lists and objects in one
    another."""
    too_deep = ValueError(f"it is nested more than {MAX_DEPTH} deep")
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        if _is_too_deep(value):
            raise too_deep
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("it holds half of a surrogate pair, which is no character") from error
    except RecursionError as error:
        raise too_deep from error
    return value


def _is_too_deep(value: object, room: int = MAX_DEPTH) -> bool:
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return room == 0 or any(_is_too_deep(part, room - 1) for part in parts)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits[:40]} is more than a float can hold")
    return number


class JsonPrefix:
    """Follows a text that comes in pieces, as long as it may be the beginning of JSON. Looks at
    every character once. Does not check numbers and names like true: the final parser does."""

    def __init__(self):
        self._open: list[str] = []  # the lists and objects that are not closed
        self._expects = "value"
        self._is_escaped = False

    def feed(self, text: str, begin: int = 0) -> int:
        """The first place, from begin on, at which the text cannot be JSON any more, else its end.
        The character at that place counts as not seen."""
        at = begin
        while at < len(text):
            if self._expects in ("rest of string", "rest of name"):
                end = self._string(text, at)
            elif self._expects == "rest of scalar" and not _SCALAR.match(text[at]).end():
                self._end_value()
                continue
            elif self._expects == "rest of scalar":
                end = _SCALAR.match(text, at).end()
            else:
                end = _SPACE.match(text, at).end() or at
                end += end == at and self._takes(text[at])
            if end == at:
                return at
            at = end
        return at

    def _string(self, text: str, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = text[at] not in _ESCAPED
            return at + (not self._is_escaped)
        end = _STRING.match(text, at).end()
        if end == at and text[at] == "\\":
            self._is_escaped = True
            return at + 1
        if end == at and text[at] == '"':
            if self._expects == "rest of name":
                self._expects = "colon"
            else:
                self._end_value()
            return at + 1
        return end

    def _takes(self, character: str) -> bool:
        """True if a character outside of strings, no space, may come next; takes it if so."""
        match self._expects, character:
            case "value" | "value or end", "{" | "[":
                self._open.append(character)
                self._expects = "name or end" if character == "{" else "value or end"
            case "value" | "value or end", '"':
                self._expects = "rest of string"
            case "name" | "name or end", '"':
                self._expects = "rest of name"
            case "colon", ":":
                self._expects = "value"
            case "comma or end", ",":
                self._expects = "name" if self._open[-1] == "{" else "value"
            case "value or end" | "name or end" | "comma or end", "}" | "]":
                if self._open[-1] != _OPENED_BY[character]:
                    return False
                self._open.pop()
                self._end_value()
            case "value" | "value or end", _ if _SCALAR.match(character).end():
                self._expects = "rest of scalar"
            case _:
                return False
        return True

    def _end_value(self) -> None:
        self._expects = "comma or end" if self._open else "nothing"
