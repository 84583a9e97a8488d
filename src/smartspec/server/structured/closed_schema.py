"""JSON schemas of arguments, closed: objects have no properties but those that are named.

By default an object may have any others, and a model that may add some goes on and on. Where several schemas hold for
one object (allOf, anyOf, oneOf, $ref), each closed by itself would forbid what the others name, and nothing is left. So
each is closed with the names of all. Every text of a closed schema is one of the schema as it was given (JSON Schema
2020-12, core, sections 10.2 and 10.3).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

from pydantic import JsonValue

from smartspec.server.structured.exclusive import exclusive

MAX_DEFINITIONS = 512  # and variants of them
MAX_NAMES = 2**14  # that are added to sub-schemas
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
NAMING = ("properties", "patternProperties")
OPENING = ("additionalProperties", "unevaluatedProperties")
ALTERNATIVES = ("anyOf", "oneOf")
LEFT_OUT = {"$defs", "definitions", "$id", "$schema", "$anchor"}  # references are resolved here

Names = frozenset[tuple[str, str]]  # of properties, or patterns of several: the keyword of NAMING and what it names
NOTHING: Names = frozenset()


def closed_parameters(schema: dict) -> dict:
    """The closed schema of a function's arguments, which are an object. Raises ValueError where they are none, for
    references that lead nowhere, and for schemas that are composed of too much."""
    kinds = schema.get("type", "object")
    if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
        raise ValueError(f"the parameters of a function must be an object, not of type {kinds!r}")
    closing = _Closing(schema)
    if not (closing.names(schema) or closing.is_open(schema) or schema.get("minProperties")):
        return NO_PARAMETERS
    closed = closing.close(schema, NOTHING) | {"type": "object"}
    definitions = closing.definitions()
    return closed | ({"$defs": definitions} if definitions else {})


class _Closing:
    """root: what references lead into."""

    def __init__(self, root: dict):
        self._root = root
        # What is referred to, with what else is named for the same value; and the name of its definition.
        self._wanted: dict[tuple[str, Names | None], str] = {}
        self._num_added = 0

    def definitions(self) -> dict[str, JsonValue]:
        """The definitions that closed schemas refer to. Call it once, at the end."""
        found: dict[str, JsonValue] = {}
        while len(found) < len(self._wanted):
            for (pointer, others), name in list(self._wanted.items())[len(found) :]:
                found[name] = self.close(self._resolved(pointer), others)
        return found

    def close(self, schema: JsonValue, others: Names | None) -> JsonValue:
        """others: what else is named for the same value; None: it may have any properties."""
        if not isinstance(schema, dict):
            return schema
        closed = {key: self._inner(key, value) for key, value in schema.items() if key not in LEFT_OUT}
        if schema.get("unevaluatedProperties") is True:  # says nothing
            del closed["unevaluatedProperties"]
        if "$ref" in schema:
            closed["$ref"] = self._reference(schema["$ref"], self._beside(schema, "$ref", others))
        if parts := _list(schema.get("allOf")):
            closed["allOf"] = self._all_of(schema, parts, others)
        for key in ALTERNATIVES:
            if parts := _list(schema.get(key)):
                beside = self._beside(schema, key, others)
                closed[key] = [self.close(part, beside) for part in parts]
                if key == "oneOf" and (chosen := exclusive(parts, closed[key], schema, self._whole)):
                    del closed[key]
                    closed["allOf"] = [*closed.get("allOf", ()), {"anyOf": chosen}]
        # A reference leads to what is closed, and one to a recursive schema may have nothing beside it.
        own = {key: value for key, value in schema.items() if key not in (*ALTERNATIVES, "$ref")}
        names_any = self.names(own) or schema.get("unevaluatedProperties") is False
        names_any = names_any or (others and "$ref" not in schema)
        if others is None or self.is_open(schema) or not names_any:
            return closed
        return self._only(closed, others | self.names(schema))

    def names(self, schema: JsonValue) -> Names:
        """The named properties of a value that the schema describes."""
        named = {(key, name) for part in self.parts(schema) for key in NAMING for name in _dict(part.get(key))}
        needed = {name for part in self.parts(schema) for name in _list(part.get("required")) if isinstance(name, str)}
        return frozenset(named | {("properties", name) for name in needed})

    def is_open(self, schema: JsonValue) -> bool:
        """True if the schema says that there may be other properties."""
        return any(part.get(key, False) is not False for part in self.parts(schema) for key in OPENING)

    def parts(self, schema: JsonValue, keys: Sequence[str] = ("allOf", *ALTERNATIVES)) -> Iterator[dict]:
        """The schema, and those that hold or may hold for the same value."""
        waiting, seen = [schema], set()
        while waiting:
            part = waiting.pop()
            if not isinstance(part, dict):
                continue
            yield part
            waiting += [inner for key in keys for inner in _list(part.get(key))]
            if "$ref" in part and part["$ref"] not in seen:
                seen.add(part["$ref"])
                waiting.append(self._resolved(part["$ref"]))

    def _whole(self, schema: JsonValue) -> Iterator[dict]:
        """The parts that hold in any case."""
        return self.parts(schema, ["allOf"])

    def _beside(self, schema: dict, key: str, others: Names | None) -> Names | None:
        """The names given to the value that the schema describes, without what is under the key."""
        rest = {name: value for name, value in schema.items() if name != key}
        return None if others is None or self.is_open(rest) else others | self.names(rest)

    def _all_of(self, schema: dict, parts: list, others: Names | None) -> list:
        beside, named = self._beside(schema, "allOf", others), [self.names(part) for part in parts]
        is_open = [self.is_open(part) for part in parts]
        counts = Counter(name for names in named for name in names)
        closed = []
        for number, part in enumerate(parts):
            more = {name for name, count in counts.items() if count > (name in named[number])}
            all_closed = beside is not None and sum(is_open) == is_open[number]
            closed.append(self.close(part, beside | more if all_closed else None))
        return closed

    def _inner(self, key: str, value: JsonValue) -> JsonValue:
        """The value of a keyword; closed where it holds schemas of what is inside."""
        if key in NAMING and isinstance(value, dict):
            return {name: self.close(part, NOTHING) for name, part in value.items()}
        if key not in ("items", "prefixItems", "contains", *OPENING):
            return value
        return [self.close(part, NOTHING) for part in value] if isinstance(value, list) else self.close(value, NOTHING)

    def _only(self, closed: dict, names: Names) -> dict:
        """The schema with no properties but these. What it says of others itself stays."""
        only = {key: value for key, value in closed.items() if key != "unevaluatedProperties"}
        if "additionalProperties" in only:
            return only
        self._num_added += len(names)
        if self._num_added > MAX_NAMES:
            raise ValueError("its allOf, anyOf, oneOf and $ref name too many properties together: use a simpler schema")
        for key in NAMING:
            if named := [name for of, name in sorted(names) if of == key]:
                only[key] = _dict(only.get(key)) | {name: True for name in named if name not in _dict(only.get(key))}
        return only | {"additionalProperties": False}

    def _reference(self, pointer: JsonValue, others: Names | None) -> str:
        self._resolved(pointer)
        name = self._wanted.setdefault((pointer, others), str(len(self._wanted)))
        if len(self._wanted) > MAX_DEFINITIONS:
            raise ValueError(f"it refers to more than {MAX_DEFINITIONS} definitions: use a simpler schema")
        return f"#/$defs/{name}"

    def _resolved(self, pointer: JsonValue) -> JsonValue:
        """The value that a reference leads to (RFC 6901)."""
        found: JsonValue = self._root
        if not isinstance(pointer, str) or pointer[:2] not in ("#", "#/"):
            raise ValueError(f"$ref {pointer!r} is no reference into the schema, such as '#/$defs/NAME'")
        for step in pointer.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
            else:
                found = _dict(found).get(key)
            if found is None:
                raise ValueError(f"$ref {pointer!r} leads to nothing in the schema")
        return found


def _dict(value: JsonValue) -> dict:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list:
    return value if isinstance(value, list) else []
