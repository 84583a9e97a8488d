"""The plan of the measurements: variants of a server or policy, under workloads and loads, so many
times each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from smartspec.workload.arrivals import check_rate

MIXED = "mixed"  # the workload in which prompts of all the others come by turns
CHANGING = "changing"  # the workload of a load whose steps name theirs


@dataclass(frozen=True)
class Variant:
    """One of those compared: a policy, with the drafters it starts with or with these (`none` for
    none); or a server that runs already."""

    name: str
    policy: str | None = None
    drafters: str | None = None
    base_url: str | None = None


@dataclass(frozen=True)
class Step:
    """A rate of so many requests per second of a workload for so many seconds."""

    workload: str
    rate: float
    seconds: float


@dataclass(frozen=True)
class Load:
    """The arrival of requests: concurrency (a closed loop), rate (Poisson arrivals per second) or
    steps."""

    concurrency: int | None = None
    rate: float | None = None
    steps: tuple[Step, ...] = ()

    def __post_init__(self):
        """ValueError for what cannot be played: found out before a server starts."""
        for rate in [self.rate, *(step.rate for step in self.steps)]:
            if rate is not None:
                check_rate(rate)
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"--concurrency must be at least 1, got {self.concurrency}")

    @property
    def name(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency} at once"
        if self.rate is not None:
            return f"{self.rate:g}/s"
        return ", then ".join(
            f"{step.workload} at {step.rate:g}/s for {step.seconds:g} s" for step in self.steps
        )


@dataclass(frozen=True)
class Cell:
    """One workload under one load."""

    workload: str
    load: Load

    @property
    def name(self) -> str:
        return f"{self.workload}, {self.load.name}"


@dataclass(frozen=True)
class Run:
    """One repetition of a cell with one variant."""

    variant: str
    cell: Cell
    repetition: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.variant, self.cell.name, self.repetition


@dataclass(frozen=True)
class Matrix:
    """Variants and cells, and what all runs have in common."""

    variants: tuple[Variant, ...]
    cells: tuple[Cell, ...]
    max_tokens: int = 64  # of an answer
    # of a run in a closed loop, None for twice the concurrency and at least 4
    requests: int | None = None
    seconds: float = 20.0  # during which requests of an open loop arrive
    # of the servers, for the page
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self):
        for what, names in (
            ("variants", [v.name for v in self.variants]),
            ("cells", [c.name for c in self.cells]),
        ):
            if twice := {name for name in names if names.count(name) > 1}:
                raise ValueError(
                    f"two {what} are named {', '.join(sorted(twice))}: give each a name of its own"
                )
        if not self.cells:
            raise ValueError("there is nothing to measure: give --concurrency, --rates or --steps")

    def num_requests(self, concurrency: int) -> int:
        return self.requests or max(4, 2 * concurrency)

    def rounds(self, repetitions: int) -> Iterator[list[Run]]:
        """The runs of a cell that are compared, one list after the other. Every second list is in
        reverse, so that none of the variants always comes first."""
        for repetition in range(repetitions):
            for number, cell in enumerate(self.cells):
                runs = [Run(variant.name, cell, repetition) for variant in self.variants]
                yield runs if (number + repetition) % 2 == 0 else runs[::-1]

    def description(self) -> dict[str, object]:
        """The values that make it this matrix and no other, for people and for JSON."""
        return {
            "variants": [_described(variant) for variant in self.variants],
            "cells": [cell.name for cell in self.cells],
            "max_tokens": self.max_tokens,
            "requests": self.requests,
            "seconds": self.seconds,
            **self.settings,
        }


def _described(variant: Variant) -> str:
    if variant.base_url is not None:
        return f"{variant.name} ({variant.base_url})"
    drafters = "" if variant.drafters is None else f", drafters {variant.drafters}"
    return f"{variant.name} (policy {variant.policy}{drafters})"


def differences(there: Mapping[str, object], here: Mapping[str, object]) -> list[str]:
    """A sentence for each thing in which two descriptions differ."""
    found = []
    for name in dict.fromkeys((*there, *here)):
        old, new = there.get(name), here.get(name)
        if old == new:
            continue
        if isinstance(old, list) and isinstance(new, list):
            parts = {
                "only there": [x for x in old if x not in new],
                "only here": [x for x in new if x not in old],
            }
            shown = [f"{', '.join(_first(some))} {where}" for where, some in parts.items() if some]
            found.append(f"{name}: {'; '.join(shown) or 'in another order'}")
        else:
            found.append(f"{name}: {old} there, {new} here")
    return found


def _first(names: list[str], most: int = 3) -> list[str]:
    return [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
