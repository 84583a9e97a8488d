"""What callers ask for their requests in `vllm_xargs` (`SamplingParams.extra_args`), as columns of a batch.

It is read once for each request, and the columns are kept from step to step: batches seldom change.
"""

from dataclasses import dataclass
from itertools import count

import numpy as np

from smartspec.control import ClassIds

MAX_DRAFT_TOKENS, WEIGHT, WORKLOAD_CLASS = "smartspec_max_draft_tokens", "smartspec_weight", "smartspec_class"
MAX_CLASS_NAME = 64


@dataclass(frozen=True)
class Caller:
    """number: the controller's, of the request. The rest is what was asked, or its default."""

    number: int
    max_draft_tokens: int
    weight: float
    class_id: int


@dataclass(frozen=True)
class Columns:
    """By row: vLLM's ids of requests, and int [R] or float [R] of each field of Caller."""

    names: tuple[str, ...]
    numbers: np.ndarray
    max_draft_tokens: np.ndarray
    weights: np.ndarray
    class_ids: np.ndarray

    @staticmethod
    def of(names: tuple[str, ...], callers: list[Caller]) -> "Columns":
        return Columns(
            names,
            numbers=np.array([caller.number for caller in callers], dtype=np.int64),
            max_draft_tokens=np.array([caller.max_draft_tokens for caller in callers], dtype=np.int64),
            weights=np.array([caller.weight for caller in callers], dtype=float),
            class_ids=np.array([caller.class_id for caller in callers], dtype=np.int64),
        )


class Callers:
    """Knows the requests that have been asked about and not forgotten. max_draft_tokens: of those that ask nothing."""

    def __init__(self, max_draft_tokens: int):
        self._max_draft_tokens = max_draft_tokens
        self._known: dict[str, Caller] = {}
        self._next_number = count()
        self._class_ids = ClassIds()
        self._last = Columns.of((), [])

    def __len__(self) -> int:
        return len(self._known)

    def columns(self, rows: list) -> Columns:
        """Of these requests of vLLM's, in their order."""
        names = tuple([request.request_id for request in rows])
        if names != self._last.names:
            self._last = Columns.of(names, [self._known.get(r.request_id) or self._meet(r) for r in rows])
        return self._last

    def forget(self, name: str) -> int | None:
        """The number of a request that has ended, None if nobody asked about it."""
        caller = self._known.pop(name, None)
        if caller is not None and name in self._last.names:
            self._last = Columns.of((), [])
        return None if caller is None else caller.number

    def _meet(self, request) -> Caller:
        asked = getattr(request.sampling_params, "extra_args", None) or {}
        name = asked.get(WORKLOAD_CLASS)
        is_class = isinstance(name, str) and 1 <= len(name) <= MAX_CLASS_NAME
        caller = Caller(
            number=next(self._next_number),
            max_draft_tokens=int(_number(asked.get(MAX_DRAFT_TOKENS), self._max_draft_tokens)),
            weight=float(_number(asked.get(WEIGHT), 1.0)),
            class_id=self._class_ids.of(name) if is_class else 0,
        )
        self._known[request.request_id] = caller
        return caller


def _number(value: object, default: float) -> float:
    """A number a caller gave; anything else counts as not asked."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value) and value >= 0
    return value if is_number else default  # type: ignore[return-value]
