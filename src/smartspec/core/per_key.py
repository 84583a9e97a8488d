"""Values kept for each API key, with a bound for each: what one key names never makes room in what
another has."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

Name = TypeVar("Name", str, bytes)
Value = TypeVar("Value")


class PerKey(Generic[Name, Value]):
    """Values by key and name. Of each key those used last are kept, at most so many."""

    def __init__(self, most_values: int):
        self._most_values = most_values
        self._of_key: dict[str, OrderedDict[Name, Value]] = {}  # the longest unused first

    def get(self, key: str, name: Name) -> Value | None:
        """The value, which is used now; None where there is none."""
        values = self._of_key.get(key)
        if values is None or name not in values:
            return None
        values.move_to_end(name)
        return values[name]

    def put(self, key: str, name: Name, value: Value) -> tuple[Name, Value] | None:
        """Keep a value. Returns what had to go for it, None if nothing had to."""
        values = self._of_key.setdefault(key, OrderedDict())
        values[name] = value
        values.move_to_end(name)
        return values.popitem(last=False) if len(values) > self._most_values else None

    def __contains__(self, place: tuple[str, Name]) -> bool:
        """True if the key has a value of that name; this does not count as a use."""
        key, name = place
        return name in self._of_key.get(key, ())

    def __iter__(self) -> Iterator[Value]:
        for values in self._of_key.values():
            yield from values.values()
