"""JSON in texts that others wrote, read strictly."""

import json
import math

from pydantic_core import from_json

MAX_DEPTH = 100  # of lists and objects in one another; what else reads them stops soon after


def read_json(text: str) -> object:
    """The value of a JSON text. Raises ValueError also for what json.loads accepts: NaN, numbers
    that no float holds, halves of surrogate pairs, and more than MAX_DEPTH lists and objects in one
    another."""
    value, end = read_first_json(text)
    if text[end:].strip():
        raise ValueError(f"more follows the JSON at character {end}")
    return value


def read_first_json(text: str) -> tuple[object, int]:
    """The value of the JSON that a text begins with, and its end. Raises as read_json."""
    too_deep = ValueError(f"it is nested more than {MAX_DEPTH} deep")
    try:
        value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
        if _is_too_deep(value):
            raise too_deep
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("it holds half of a surrogate pair, which is no character") from error
    except RecursionError as error:
        raise too_deep from error
    return value, end


def may_begin_json(text: str) -> bool:
    """True if more text could make JSON of it."""
    try:
        from_json(text)
    except ValueError as error:
        return str(error).startswith("EOF")  # what is missing; other errors tell what is wrong
    return True


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


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)
