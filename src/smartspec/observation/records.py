"""Observations of an engine's traffic: sums over its steps by load and drafts, outcomes of drafts,
arrivals.

Sums are enough to fit step times, as these are linear in what is summed: a step's mean time is the
time of its mean size, if the tokens beyond each possible bend are summed, too.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from itertools import groupby
from operator import attrgetter, itemgetter

import numpy as np

KIND, FORMAT = "smartspec-observation", 3
# Fed tokens from which on a pass may be bound by arithmetic. Tokens beyond each are summed.
BENDS = (
    2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448, 480, 512,
    640, 768, 1024,
)  # fmt: skip
LONGEST_STEP = 60.0  # seconds: more is no step, but a machine that was stopped
MAX_CLASSES = 32
OTHER_CLASS = "(other)"


@dataclass(frozen=True)
class StepSize:
    """The size of a step."""

    seconds: float
    requests: int  # that it feeds
    decoding: int  # those of them past their prompt
    context_tokens: int  # in the KV of all
    fed_tokens: int  # prefill and verified draft tokens included
    verified_tokens: int
    emitted_tokens: int  # of all requests
    prefills: int
    prefill_tokens: int
    passes: int  # of a draft model

    @property
    def drafted(self) -> int:
        """Verified draft tokens of a request, in the mean: 0 where no request has any, else at
        least 1."""
        mean = self.verified_tokens / max(self.decoding, 1)
        return max(round(mean), int(self.verified_tokens > 0))


SUMS = ("steps", *(each.name for each in fields(StepSize)), "squares", "mixed", "pass_rows",
        "drafting")  # fmt: skip
COLUMN = {name: number for number, name in enumerate(SUMS)}
KEY = ("level", "length", "drafted")  # see level_of; draft length that was set; StepSize.drafted
COLUMNS = [*KEY, *SUMS, *map(str, BENDS)]  # of a row in a file
Key = tuple[int, int, int]


@dataclass(frozen=True, order=True)
class DraftOutcome:
    """The outcome of a request's draft in a step."""

    class_name: str
    length: int  # of drafts when it was made
    drafted: int  # how much of it was verified
    accepted: int  # how much of that was right


@dataclass
class Arrivals:
    """The requests that arrived."""

    seconds: float = 0.0  # between the first and the last step
    requests: int = 0
    prompt_tokens: int = 0


@dataclass
class Observation:
    """Observed steps of one setup."""

    setup: dict  # what the steps ran on, see setup_of in the plugin
    # by KEY, sums of SUMS and of fed tokens beyond each of BENDS
    cells: dict[Key, np.ndarray] = field(default_factory=dict)
    outcomes: Counter[DraftOutcome] = field(default_factory=Counter)
    arrivals: Arrivals = field(default_factory=Arrivals)
    left_out: int = 0  # steps whose time cannot be true

    @property
    def num_steps(self) -> int:
        return int(sum(cell[0] for cell in self.cells.values()))

    @property
    def by_level(self) -> dict[int, dict[Key, np.ndarray]]:
        """The cells of each level, the smallest first."""
        return _grouped(self.cells, itemgetter(0))

    @property
    def by_class(self) -> dict[str, dict[DraftOutcome, int]]:
        """The outcomes of each class of requests."""
        return _grouped(self.outcomes, attrgetter("class_name"))

    def add_steps(self, lengths: list[int], steps: list[StepSize]) -> None:
        """Add finished steps. lengths: of the drafts that each verified."""
        known = zip(lengths, steps, strict=True)
        sound = [(k, step) for k, step in known if 0 < step.seconds <= LONGEST_STEP]
        self.left_out += len(steps) - len(sound)
        if not sound:
            return
        keys = [(level_of(step.requests), length, step.drafted) for length, step in sound]
        columns = sums_of([step for _, step in sound])
        for key in set(keys):
            mine = columns[[each == key for each in keys]].sum(axis=0)
            self.cells[key] = self.cells.get(key, 0.0) + mine

    def add_outcomes(self, outcomes: Iterable[tuple[DraftOutcome, int]]) -> None:
        """Add counted outcomes of drafts. Classes beyond MAX_CLASSES are one."""
        names = set(self.by_class)
        for outcome, count in outcomes:
            if outcome.class_name not in names and len(names) >= MAX_CLASSES:
                outcome = replace(outcome, class_name=OTHER_CLASS)
            names.add(outcome.class_name)
            self.outcomes[outcome] += count

    def to_dict(self) -> dict:
        """JSON-able."""
        cells = [
            [*key, *(float(f"{value:.9g}") for value in cell)]
            for key, cell in sorted(self.cells.items())
        ]
        outcomes = [[*astuple(o), count] for o, count in sorted(self.outcomes.items())]
        return {
            "kind": KIND, "format": FORMAT, "setup": self.setup, "arrivals": asdict(self.arrivals),
            "left_out": self.left_out, "columns": COLUMNS, "cells": cells, "outcomes": outcomes,
        }  # fmt: skip

    @staticmethod
    def from_dict(data: object) -> "Observation":
        """Inverse of to_dict. ValueError says what is corrupt or from another version."""
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise ValueError("it is no observation of SmartSpec")
        if data.get("format") != FORMAT or data.get("columns") != COLUMNS:
            raise ValueError(
                f"it is of another version of SmartSpec (format {data.get('format')}, here "
                f"{FORMAT})"
            )
        try:
            cells = _cells(np.array(data["cells"], dtype=float).reshape(-1, len(COLUMNS)))
            outcomes = Counter({DraftOutcome(*row[:-1]): row[-1] for row in data["outcomes"]})
            arrivals, setup = Arrivals(**data["arrivals"]), dict(data["setup"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"it is corrupt ({error!r})") from error
        return Observation(setup, cells, outcomes, arrivals, int(data.get("left_out", 0)))

    @staticmethod
    def merged(parts: list["Observation"]) -> "Observation":
        """The sum of observations of several engines with one setup that serve side by side."""
        whole = Observation(dict(parts[0].setup))
        for part in parts:
            for key, cell in part.cells.items():
                whole.cells[key] = whole.cells.get(key, 0.0) + cell
            whole.outcomes.update(part.outcomes)
            whole.left_out += part.left_out
            whole.arrivals.seconds = max(whole.arrivals.seconds, part.arrivals.seconds)
            whole.arrivals.requests += part.arrivals.requests
            whole.arrivals.prompt_tokens += part.arrivals.prompt_tokens
        return whole


def level_of(requests: float) -> int:
    """Requests at a time, rounded to half powers of two: 0 for 1, 1 for 1.4, 2 for 2, ... 12 for
    64."""
    return round(2 * math.log2(max(requests, 1)))


def total(cells: Iterable[np.ndarray]) -> dict[str, float]:
    """The SUMS of these cells together, by name."""
    whole = np.sum(list(cells), axis=0)
    return {name: float(whole[number]) for name, number in COLUMN.items()}


def sums_of(steps: Sequence[StepSize]) -> np.ndarray:
    """Each step's part of the sums: float [N, SUMS and BENDS]."""
    values = np.array([(1, *vars(step).values()) for step in steps], dtype=float)
    seconds, decoding, prefills, fed, passes, verified = (
        values[:, COLUMN[name]]
        for name in ("seconds", "decoding", "prefills", "fed_tokens", "passes", "verified_tokens")
    )
    beyond = np.maximum(fed[:, None] - np.array(BENDS), 0)
    return np.column_stack(
        [values, seconds**2, prefills > 0, passes * decoding, verified > 0, beyond]
    )


def _grouped(items: Mapping, group_of: Callable) -> dict:
    """The items by the group of their keys, in the order of both."""
    groups = groupby(sorted(items), group_of)
    return {group: {key: items[key] for key in keys} for group, keys in groups}


def _cells(rows: np.ndarray) -> dict[Key, np.ndarray]:
    """The cells in the rows of a file: float [N, COLUMNS]."""
    keys, sums = np.split(rows, [len(KEY)], axis=1)
    is_sound = np.isfinite(rows).all() and (rows >= 0).all() and (keys == keys.round()).all()
    if not is_sound or (sums[:, [COLUMN["steps"], COLUMN["seconds"]]] <= 0).any():
        raise ValueError("sums must be finite, of steps that took time")
    return dict(zip(map(tuple, keys.astype(int).tolist()), sums, strict=True))
