"""What was measured, as figures: of each variant in each cell, and of ours against the others."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import median

from smartspec.report.folder import Measured, Runs, runs_of
from smartspec.report.matrix import Cell, Matrix
from smartspec.report.speed_ups import SpeedUp, speed_ups
from smartspec.workload.summary import Distribution, distribution


@dataclass(frozen=True)
class CellFigures:
    """One variant in one cell, over all its repetitions. Distributions are over requests; tokens
    per second the median over repetitions."""

    variant: str
    cell: Cell
    repetitions: int
    end_to_end_seconds: Distribution
    ttft_seconds: Distribution | None
    tpot_seconds: Distribution | None
    tokens_per_second: float
    # acceptance, mean_k: as in SpeculationSummary; None if the server does not say
    acceptance: float | None
    mean_k: float | None


@dataclass(frozen=True)
class Results:
    """Runs of a matrix and their figures, each computed once. ours: the variant that the others are
    compared with."""

    matrix: Matrix
    runs: Runs
    failed: Runs  # runs without figures
    environment: Mapping[str, str]
    command: str
    ours: str

    @cached_property
    def figures(self) -> list[CellFigures]:
        """In the order of cells and variants; only what was measured."""
        return [
            _figures(variant.name, cell, some)
            for cell in self.matrix.cells
            for variant in self.matrix.variants
            if (some := runs_of(self.runs, variant.name, cell.name))
        ]

    @cached_property
    def speed_ups(self) -> list[SpeedUp]:
        return speed_ups(self.matrix, self.runs, self.ours)

    @cached_property
    def best_fixed(self) -> dict[str, str]:
        """The variant of a fixed length with the lowest mean latency, by cell name: known only
        afterwards."""
        fixed = {
            variant.name
            for variant in self.matrix.variants
            if (variant.policy or "").startswith("fixed")
        }
        best: dict[str, str] = {}
        for each in sorted(self.figures, key=lambda each: each.end_to_end_seconds.mean):
            if each.variant in fixed:
                best.setdefault(each.cell.name, each.variant)
        return best

    @property
    def over_best_fixed(self) -> list[SpeedUp]:
        """The speed-ups over the fixed length that turned out best in each cell."""
        return [
            each for each in self.speed_ups if self.best_fixed.get(each.cell.name) == each.other
        ]

    def to_json(self) -> dict:
        """All figures, for programs: seconds, tokens per second, ratios."""
        return {
            "ours": self.ours,
            "command": self.command,
            "environment": dict(self.environment),
            "matrix": self.matrix.description(),
            "speed_ups": [_speed_up_json(each, self.best_fixed) for each in self.speed_ups],
            "cells": [_figures_json(each) for each in self.figures],
            "num_failed": len(self.failed),
        }


def our_variant(matrix: Matrix) -> str:
    """The first of policy goodput or with goodput or smartspec in its name, else the last."""
    names = [variant.name for variant in matrix.variants]
    likely = [name for name in names if "goodput" in name.lower() or "smartspec" in name.lower()]
    return [*likely, names[-1]][0]


def _figures(variant: str, cell: Cell, runs: Sequence[Measured]) -> CellFigures:
    records = [record for run in runs for record in run.records]
    counters = [run.counters for run in runs if run.counters is not None]
    verified = sum(each.num_verified_tokens for each in counters)
    rows = sum(each.num_decode_rows for each in counters)
    return CellFigures(
        variant,
        cell,
        len(runs),
        distribution(record.end_to_end_seconds for record in records),
        distribution(record.ttft_seconds for record in records),
        distribution(record.tpot_seconds for record in records),
        median(run.summary.output_tokens_per_second for run in runs),
        sum(each.num_accepted_tokens for each in counters) / verified if verified else None,
        verified / rows if rows else None,
    )


def _speed_up_json(each: SpeedUp, best_fixed: Mapping[str, str]) -> dict:
    return {
        "workload": each.cell.workload,
        "load": each.cell.load.name,
        "other": each.other,
        "is_best_fixed": best_fixed.get(each.cell.name) == each.other,
        "ratio": each.ratio,
        "interval": [each.low, each.high],
        "verdict": each.verdict,
        "repetitions": each.repetitions,
        "equal_answers": each.equal_answers,
    }


def _figures_json(each: CellFigures) -> dict:
    figures, load = asdict(each), each.cell.load
    del figures["cell"]
    return {
        "workload": each.cell.workload,
        "load": load.name,
        "concurrency": load.concurrency,
        "rate": load.rate,
        **figures,
    }
