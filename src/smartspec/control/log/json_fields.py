"""Reading numbers back from a line of JSON, with errors that name the line and the field.

JSON has no NaN or infinity: both are written as null, and null is read as NaN.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np

T = TypeVar("T")

MAX_SHOWN = 60
MAX_INTEGER = 2**63


def matrix_or_null(values: np.ndarray) -> list:
    """Return values, float [R, K], as lists of numbers rounded to 4 digits, None where not
    finite."""
    rounded = np.round(values, 4).astype(object)
    rounded[~np.isfinite(values)] = None
    return rounded.tolist()


@dataclass(frozen=True)
class Fields:
    """The fields of one JSON object. All methods raise ValueError where a field is not as
    described."""

    data: dict
    where: str  # it was found, for people

    @staticmethod
    def parse(text: str, version: int, line: int | None) -> "Fields":
        """Return the object on a line, which must name this format version."""
        fields = Fields({}, "decision record" if line is None else f"decision log, line {line}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            fields.fail(f"not valid JSON ({error})")
        if not isinstance(data, dict) or data.get("format") != version:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            fields.fail(
                f"field 'format' is {_shorten(found)}, this version reads {version}: record it anew"
            )
        return Fields(data, fields.where)

    def fail(self, problem: str) -> NoReturn:
        """Raise ValueError with the place and the problem."""
        raise ValueError(f"{self.where}: {problem}")

    def optional(self, read: Callable[..., T], name: str, *arguments: int | None) -> T | None:
        """Return read(name, *arguments), None where the field is left out or null."""
        return None if self.data.get(name) is None else read(name, *arguments)

    def integers(self, name: str, *shape: int | None) -> np.ndarray:
        """Return a list, or lists of lists, as int64 of this shape. None: of any length."""
        return self._array(name, shape, _is_integer, "integers").astype(np.int64)

    def numbers(self, name: str, *shape: int | None) -> np.ndarray:
        """Return the same as float, NaN for null."""
        return self._array(name, shape, _is_number_or_null, "numbers").astype(float)

    def parents(self, name: str, num_rows: int) -> np.ndarray:
        """Return int64 [num_rows, K], the node that each node of a tree follows, -1 for the
        text."""
        parents = self.numbers(name, num_rows, None)
        if not ((parents >= -1) & (parents < np.arange(parents.shape[1]))).all():
            self.fail(
                f"field {name!r} must name for every node one before it or -1, found "
                f"{self._found(name)}"
            )
        return parents.astype(np.int64)

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

    def _array(self, name: str, shape: tuple[int | None, ...], fits, kind: str) -> np.ndarray:
        values = np.array(self.data.get(name), dtype=object)
        if values.shape == (0,) and not shape[0]:  # an empty list has no lists of any length
            return np.zeros([size or 0 for size in shape])
        is_sound = values.ndim == len(shape) and all(
            size in (None, found) for size, found in zip(shape, values.shape, strict=True)
        )
        if not is_sound or not all(map(fits, values.flat)):
            sizes = " x ".join("n" if size is None else str(size) for size in shape)
            self.fail(f"field {name!r} must hold {sizes} {kind}, found {self._found(name)}")
        return values

    def _found(self, name: str) -> str:
        return _shorten(self.data[name]) if name in self.data else "nothing"


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _is_integer(value: object) -> bool:
    return type(value) is int and -MAX_INTEGER <= value < MAX_INTEGER


def _is_number(value: object) -> bool:
    # Python's parser takes NaN and Infinity, and integers beyond any float.
    return type(value) in (int, float) and abs(value) < 1e300  # type: ignore[arg-type]


def _is_number_or_null(value: object) -> bool:
    return value is None or _is_number(value)
