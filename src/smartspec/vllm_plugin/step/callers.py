"""Request options of callers, from `vllm_xargs` (`SamplingParams.extra_args`), as columns of a
batch.

They are read once for each request. The columns are kept from step to step, as batches seldom
change. vLLM does not check the values: a value of a wrong type or out of its range counts as not
given.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from smartspec.control import ClassIds
from smartspec.core.speculation import MAX_CLASS_NAME, MAX_WEIGHT, MIN_WEIGHT

logger = logging.getLogger("vllm.smartspec")

MAX_DRAFT_TOKENS = "smartspec_max_draft_tokens"
WEIGHT, WORKLOAD_CLASS = "smartspec_weight", "smartspec_class"
# as in the HTTP field `speculation`
RANGES = {
    MAX_DRAFT_TOKENS: "a number of at least 0",
    WEIGHT: f"a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}",
    WORKLOAD_CLASS: f"a text of 1 to {MAX_CLASS_NAME} characters",
}


@dataclass(frozen=True)
class Caller:
    """A request with its options, or their defaults."""

    number: int  # the controller's number of the request
    max_draft_tokens: int
    weight: float
    class_id: int


@dataclass(frozen=True)
class Columns:
    """The fields of Caller by row."""

    names: tuple[str, ...]  # vLLM's ids of the requests
    numbers: np.ndarray  # int [R]
    max_draft_tokens: np.ndarray  # int [R]
    weights: np.ndarray  # float [R]
    class_ids: np.ndarray  # int [R]

    @staticmethod
    def of(names: tuple[str, ...], callers: list[Caller]) -> "Columns":
        whole = [(c.number, c.max_draft_tokens, c.class_id) for c in callers]
        numbers, longest, class_ids = np.array(whole, dtype=np.int64).reshape(-1, 3).T
        weights = np.array([caller.weight for caller in callers], dtype=float)
        return Columns(names, numbers, longest, weights, class_ids)


class Callers:
    """The callers of earlier batches, until they are forgotten. max_draft_tokens: the default of
    that option."""

    def __init__(self, max_draft_tokens: int):
        self._max_draft_tokens = max_draft_tokens
        self._known: dict[str, Caller] = {}
        self._next_number = count()
        self._class_ids = ClassIds()
        self._last = Columns.of((), [])
        self._warnings: set[str] = set()  # fields whose wrong value is in the log

    def columns(self, rows: list) -> Columns:
        """Return the columns of these vLLM requests, in their order."""
        names = tuple([request.request_id for request in rows])
        if names != self._last.names:
            self._last = Columns.of(
                names, [self._known.get(r.request_id) or self._add(r) for r in rows]
            )
        return self._last

    def forget(self, name: str) -> int | None:
        """Forget a request that has ended, and return its number, None if it was in no batch."""
        caller = self._known.pop(name, None)
        if caller is not None and name in self._last.names:
            self._last = Columns.of((), [])
        return None if caller is None else caller.number

    def forget_all(self) -> list[int]:
        """Forget all requests, and return their numbers."""
        numbers = [caller.number for caller in self._known.values()]
        self._known.clear()
        self._last = Columns.of((), [])
        return numbers

    def _add(self, request) -> Caller:
        options = _options_of(request)
        # Compared before it is converted: whole numbers may be too large for a float, and floats
        # for an integer.
        longest = self._read(options, MAX_DRAFT_TOKENS, lambda n: _is_number(n) and n >= 0)
        weight = self._read(
            options, WEIGHT, lambda n: _is_number(n) and MIN_WEIGHT <= n <= MAX_WEIGHT
        )
        name = self._read(options, WORKLOAD_CLASS, _is_class)
        most = self._max_draft_tokens
        caller = Caller(
            number=next(self._next_number),
            max_draft_tokens=most if longest is None else int(min(longest, most)),
            weight=1.0 if weight is None else float(weight),
            class_id=0 if name is None else self._class_ids.of(name),
        )
        self._known[request.request_id] = caller
        return caller

    def _read(self, options: Mapping, field: str, is_sound: Callable[[Any], bool]) -> Any:
        """Return the value of an option; None, after a warning, for one that is not sound."""
        value = options.get(field)
        if value is None or is_sound(value):
            return value
        if field not in self._warnings:  # once: a client that is wrong is wrong with every request
            self._warnings.add(field)
            text = "%s of a request counts as not given: use %s, not this %s. Said once."
            logger.warning(text, field, RANGES[field], type(value).__name__)
        return None


def class_of(request) -> str:
    """Return the class of a vLLM request, "" for none."""
    name = _options_of(request).get(WORKLOAD_CLASS)
    return name if _is_class(name) else ""


def _options_of(request) -> Mapping:
    extra = None if request.sampling_params is None else request.sampling_params.extra_args
    return extra if isinstance(extra, Mapping) else {}


def _is_class(name: object) -> bool:
    return isinstance(name, str) and 1 <= len(name) <= MAX_CLASS_NAME


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
