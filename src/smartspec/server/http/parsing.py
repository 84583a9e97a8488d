"""Parses and checks a body. An error names the parameter that is wrong."""

import reprlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from smartspec.core.origin import Origin
from smartspec.server.http.body_model import Body, BodyContext
from smartspec.server.http.errors import APIError

# Parsing holds the interpreter lock. A body of a million empty lists would stop all other answers,
# in any thread. The number of separators tells how much there is to parse, and counting them is
# quick.
MAX_VALUES = 2**18  # numbers, strings, lists and objects: 35 ms at most
MAX_NAMES = 2**15  # of members of objects, which take longer
MAX_SHOWN = 80  # characters of a value in an error


AnyBody = TypeVar("AnyBody", bound=Body)


@dataclass(frozen=True)
class BodyParser:
    """Reads bodies. What a body has that this server does not know is ignored, at every depth, and
    its names go to count_ignored with the client that sent them. strict: it is refused instead."""

    strict: bool
    count_ignored: Callable[[Collection[str], str], None]

    def parse(self, kind: type[AnyBody], body: bytes, client: Origin) -> AnyBody:
        """Raises APIError 400 for anything that is not a valid body of this kind, naming the
        parameter at fault."""
        _check_num_parts(body)
        context = BodyContext(self.strict)
        try:
            parsed = kind.model_validate_json(
                body, extra="forbid" if self.strict else "ignore", context=context
            )
        except ValidationError as error:
            raise refusal(kind, error) from error
        self.count_ignored(context.ignored, client.client)
        return parsed


def refusal(kind: type[BaseModel], error: ValidationError) -> APIError:
    """400, naming the first parameter at fault of a body of this kind."""
    first = error.errors(include_url=False, include_context=False)[0]
    param = _path(first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "json_invalid":
            return APIError(
                400, f"the body is not valid JSON in UTF-8 ({message})", code="invalid_json"
            )
        case "extra_forbidden":
            return APIError(
                400, f"unknown or unsupported parameter {param!r}", param, "unknown_parameter"
            )
        case "missing":
            return APIError(400, f"{param} is required", param, "missing_parameter")
        case "value_error" if param is None:
            name = message.split()[0]
            return APIError(
                400, message, name if name in kind.model_fields else None, "invalid_value"
            )
        case _:
            got = _cut(reprlib.repr(first["input"]))
            return APIError(
                400, f"{param or 'the body'}: {message}, got {got}", param, "invalid_value"
            )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _path(location: tuple[str | int, ...]) -> str | None:
    """("messages", 0, "role") -> "messages[0].role"."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{_cut(part)}" for part in location)
    return path.removeprefix(".") or None


def _check_num_parts(body: bytes) -> None:
    """Raises APIError 400 if the JSON in body has too many values or names, which would take long
    to parse. The parser reports all other errors."""
    if _counts_too_much(body) and _counts_too_much(_without_strings(body)):
        message = (
            f"the body has too many parts: at most {MAX_VALUES} values and {MAX_NAMES} names of "
            "fields are read"
        )
        raise APIError(400, message, code="invalid_value")


def _counts_too_much(text: bytes) -> bool:
    num_values = text.count(b",") + text.count(b"[") + text.count(b"{")
    return num_values > MAX_VALUES or text.count(b":") > MAX_NAMES


def _without_strings(body: bytes) -> bytes:
    """The body without its strings. Stops reading strings once there are too many."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = plain.split(b'"', 2 * (MAX_VALUES + MAX_NAMES) + 2)
    if len(parts) > 2 * (MAX_VALUES + MAX_NAMES) + 2:
        return b"," * (MAX_VALUES + 1)
    return b"".join(parts[::2])
