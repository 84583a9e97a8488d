"""oneOf of objects as anyOf whose alternatives exclude each other, which grammars can hold a text to.

A text that satisfies one alternative satisfies no other if it has a property that the other gives no such value, or
lacks one that the other requires. Alternatives are narrowed until that is so.
"""

import json
from collections.abc import Callable, Iterator

from pydantic import JsonValue

MAX_ALTERNATIVES = 128  # each is compared with each

Parts = Callable[[JsonValue], Iterator[dict]]


def exclusive(given: list, closed: list, beside: dict, parts: Parts) -> list[dict]:
    """The closed alternatives of a oneOf, narrowed; those left out that another one always covers. Empty where they are
    no objects, or too many. Raises ValueError if none is left.

    given: the alternatives as they were. beside: the schema that has the oneOf. parts: a schema, and those that hold
    for the same value with it.
    """
    if len(given) > MAX_ALTERNATIVES:
        return []
    sides = [_Side(part, parts) for part in given]
    if not all(side.is_object for side in sides):
        return []
    always = _required(iter([beside]))
    narrowed = (
        _narrowed(schema, side, [other for other in sides if other is not side], always)
        for schema, side in zip(closed, sides, strict=True)
    )
    left = [schema for schema in narrowed if schema is not None]
    if not left:
        raise ValueError(
            "what satisfies one alternative of its oneOf satisfies another, too: name in each what it requires, or use "
            "anyOf"
        )
    return left


class _Side:
    """The statements of one alternative about its properties."""

    def __init__(self, schema: JsonValue, parts: Parts):
        found = list(parts(schema))
        self.required = _required(iter(found))
        self.values: dict[str, list[dict]] = {}
        for part in found:
            for name, value in _properties(part).items():
                self.values.setdefault(name, []).extend(parts(value))
        kinds = [part["type"] for part in found if "type" in part]
        self.is_object = all(kind == "object" for kind in kinds) and bool(kinds or self.required or self.values)


def _narrowed(schema: dict, side: _Side, others: list[_Side], always: dict[str, None]) -> dict | None:
    """The schema with what excludes the others; None where it cannot be without one of them."""
    needed, forbidden = side.required | always, {}
    for other in others:
        telling = [name for name in side.values if _are_apart(side.values[name], other.values.get(name, []))]
        missing = [name for name in other.required if name not in needed]
        if telling and not needed.keys() & telling:
            needed[telling[0]] = None
        elif not telling and not missing:
            return None
        elif not telling and not forbidden.keys() & other.required:
            forbidden[missing[0]] = False
    if forbidden.keys() & needed:
        return None
    more = {"required": list(needed)} if needed else {}
    return schema | more | ({"properties": _properties(schema) | forbidden} if forbidden else {})


def _are_apart(one: list[dict], other: list[dict]) -> bool:
    """True if no value satisfies both, as far as their constants and types say."""
    for ours in map(_constants, one):
        for theirs in map(_constants, other):
            if ours is not None and theirs is not None and not ours & theirs:
                return True
    return any(not a & b for a in map(_kinds, one) for b in map(_kinds, other) if a and b)


def _constants(schema: dict) -> set[str] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return {json.dumps(value, sort_keys=True) for value in values} if isinstance(values, list) else None


def _kinds(schema: dict) -> set[str]:
    kind = schema.get("type", [])
    kinds = {kind} if isinstance(kind, str) else set(kind)
    return kinds | ({"integer"} if "number" in kinds else set())


def _required(parts: Iterator[dict]) -> dict[str, None]:
    """The required names, in order."""
    return {name: None for part in parts if isinstance(part.get("required"), list) for name in part["required"]}


def _properties(schema: dict) -> dict:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}
