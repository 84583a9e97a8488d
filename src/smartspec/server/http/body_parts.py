"""Refuses a body before it is parsed if parsing would take long.

Parsing holds the interpreter lock. A body of a million empty lists would stop all other answers, in
any thread. The number of separators tells how much there is to parse, and counting them is quick.
"""

from smartspec.server.http.errors import APIError

MAX_VALUES = 2**18  # numbers, strings, lists and objects: 35 ms at most
MAX_NAMES = 2**15  # of members of objects, which take longer


def check_num_parts(body: bytes) -> None:
    """Raises APIError 400 if the JSON in body has too many values or names. The parser reports all
    other errors."""
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
