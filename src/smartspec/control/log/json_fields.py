"""Reading numbers back from a line of JSON, with errors that name the line and the field.

JSON has no NaN or infinity: both are written as null, and null is read as NaN.
"""

import json
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

MAX_SHOWN = 60
MAX_INTEGER = 2**63


def numbers_or_null(values: np.ndarray) -> list:
    """Return values, float [N], as a list, None where not finite."""
    return [
        value if finite else None
        for value, finite in zip(values.tolist(), np.isfinite(values).tolist(), strict=True)
    ]


def matrix_or_null(values: np.ndarray) -> list:
    """Return values, float [R, K], as lists of numbers rounded to 4 digits, None where not
    finite."""
    return [numbers_or_null(row) for row in np.round(values, 4)]


@dataclass(frozen=True)
class Fields:
    """The fields of one JSON object. All methods raise ValueError where a field is not as
    described."""

    data: dict
    line: int | None  # its number in the file, None if unknown

    @staticmethod
    def parse(text: str, version: int, line: int | None) -> "Fields":
        """Return the object on a line, which must name this format version."""
        fields = Fields({}, line)
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            fields.fail(f"not valid JSON ({error})")
        if not isinstance(data, dict) or data.get("format") != version:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            fields.fail(
                f"field 'format' is {_shorten(found)}, this version reads {version}: record it anew"
            )
        return Fields(data, line)

    def fail(self, problem: str) -> NoReturn:
        """Raise ValueError with the line and the problem."""
        where = "decision record" if self.line is None else f"decision log, line {self.line}"
        raise ValueError(f"{where}: {problem}")

    def has(self, name: str) -> bool:
        """True if an optional field is there; null counts as left out."""
        return self.data.get(name) is not None

    def integers(self, name: str, length: int | None = None) -> np.ndarray:
        """Return a list field as int64 [length]."""
        return np.array(self._list(name, length, _is_integer, "integers"), dtype=np.int64)

    def numbers(self, name: str, length: int) -> np.ndarray:
        """Return a list field as float [length], NaN for null."""
        return np.array(self._list(name, length, _is_number_or_null, "numbers"), dtype=float)

    def matrix(self, name: str, num_rows: int) -> np.ndarray:
        """Return a field of lists as float [num_rows, K], NaN for null. Without rows K is 0."""
        rows = self._list(name, num_rows, lambda row: isinstance(row, list), "lists")
        if len({len(row) for row in rows}) > 1 or not all(
            _is_number_or_null(item) for row in rows for item in row
        ):
            self.fail(
                f"field {name!r} must be {num_rows} equally long lists of numbers, found "
                f"{_shorten(rows)}"
            )
        return np.array(rows, dtype=float).reshape(num_rows, -1 if num_rows else 0)

    def parents(self, name: str, num_rows: int) -> np.ndarray:
        """Return int64 [num_rows, K], the node that each node of a tree follows, -1 for the
        text."""
        parents = self.matrix(name, num_rows)
        if not ((parents >= -1) & (parents < np.arange(parents.shape[1]))).all():
            self.fail(
                f"field {name!r} must name for every node one before it or -1, found "
                f"{self._found(name)}"
            )
        return parents.astype(np.int64)

    def tables(self, name: str, num_columns: int, length: int) -> list[np.ndarray]:
        """Return a field of tables as int64 [num_columns, length] each; none where left out."""
        tables = (
            self._list(name, None, lambda table: isinstance(table, list), "lists")
            if self.has(name)
            else []
        )
        for table in tables:
            is_sound = len(table) == num_columns and all(
                isinstance(c, list) and len(c) == length for c in table
            )
            if not is_sound or not all(_is_integer(item) for column in table for item in column):
                self.fail(
                    f"field {name!r} must hold {num_columns} x {length} integers each, found "
                    f"{_shorten(table)}"
                )
        return [np.array(table, dtype=np.int64).reshape(num_columns, length) for table in tables]

    def integer(self, name: str, default: int | None = None) -> int:
        return self._one(name, _is_integer, "an integer", default)

    def number(self, name: str) -> float:
        return float(self._one(name, _is_number, "a number"))

    def mapping(self, name: str) -> dict:
        return self._one(name, lambda value: isinstance(value, dict), "an object")

    def text(self, name: str) -> str:
        return self._one(name, lambda value: isinstance(value, str), "a string")

    def _one(self, name: str, fits, kind: str, default=None):
        value = self.data.get(name, default)
        if not fits(value):
            self.fail(f"field {name!r} must be {kind}, found {self._found(name)}")
        return value

    def _list(self, name: str, length: int | None, fits, kind: str) -> list:
        values = self.data.get(name)
        if (
            not isinstance(values, list)
            or (length is not None and len(values) != length)
            or not all(map(fits, values))
        ):
            count = "" if length is None else f"{length} "
            self.fail(f"field {name!r} must be a list of {count}{kind}, found {self._found(name)}")
        return values

    def _found(self, name: str) -> str:
        return _shorten(self.data[name]) if name in self.data else "nothing"


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _is_integer(value: object) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -MAX_INTEGER <= value < MAX_INTEGER
    )


def _is_number(value: object) -> bool:
    # Python's parser takes NaN and Infinity, and integers beyond any float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_number_or_null(value: object) -> bool:
    return value is None or _is_number(value)
