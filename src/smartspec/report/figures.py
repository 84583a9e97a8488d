"""The way from runs to figures: what each variant did in each cell, and how many times as fast one
is as another.

A speed-up is the other's mean end-to-end latency over ours, of the same requests, within one
repetition. It is the median over repetitions. Its interval is a bootstrap: repetitions are drawn
again, and within each its pairs of requests, so that what differs from run to run counts as well as
what differs from request to request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from smartspec.report.folder import Measured
from smartspec.report.matrix import Cell, Matrix
from smartspec.workload.records import RequestRecord
from smartspec.workload.summary import Distribution, distribution

NUM_DRAWS = 2000
INTERVAL = (5.0, 95.0)  # percentiles: 90 %
MIN_REPETITIONS = 3  # fewer know too little of what differs between runs
NOISE, TOO_FEW = "inside the noise", "too few repetitions"
Runs = Mapping[tuple[str, str, int], Measured]


@dataclass(frozen=True)
class CellFigures:
    """One variant in one cell, over all its repetitions. Distributions are over requests, in
    seconds; tokens per second the median over repetitions."""

    variant: str
    cell: Cell
    repetitions: int
    end_to_end: Distribution
    ttft: Distribution | None
    tpot: Distribution | None
    tokens_per_second: float
    # acceptance, mean_k: as in SpeculationSummary; None if the server does not say
    acceptance: float | None
    mean_k: float | None


@dataclass(frozen=True)
class SpeedUp:
    """ours against another in a cell: ratio above 1 is faster."""

    cell: Cell
    ours: str
    other: str
    ratio: float
    # low, high: bounds of the 90 % interval
    low: float
    high: float
    repetitions: int
    num_pairs: int
    # share of the compared answers that are the same text, None where there are no texts
    equal_answers: float | None

    @property
    def verdict(self) -> str:
        if self.low <= 1 <= self.high:
            return NOISE
        if self.repetitions < MIN_REPETITIONS:
            return TOO_FEW
        return "faster" if self.ratio > 1 else "slower"


def cell_figures(matrix: Matrix, runs: Runs) -> list[CellFigures]:
    """The figures in the order of cells and variants; only what was measured."""
    found = []
    for cell in matrix.cells:
        for variant in matrix.variants:
            of_cell = [
                run for key, run in sorted(runs.items()) if key[:2] == (variant.name, cell.name)
            ]
            if of_cell:
                found.append(_figures(variant.name, cell, of_cell))
    return found


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


def speed_ups(matrix: Matrix, runs: Runs, ours: str) -> list[SpeedUp]:
    """ours against each other variant in each cell where both were measured; the worst first."""
    others = [variant.name for variant in matrix.variants if variant.name != ours]
    found = [speed_up(runs, cell, ours, other) for cell in matrix.cells for other in others]
    return sorted([each for each in found if each is not None], key=lambda each: each.ratio)


def speed_up(runs: Runs, cell: Cell, ours: str, other: str) -> SpeedUp | None:
    repetitions = sorted({key[2] for key in runs if key[1] == cell.name})
    both = [
        (runs[ours, cell.name, r], runs[other, cell.name, r])
        for r in repetitions
        if (ours, cell.name, r) in runs and (other, cell.name, r) in runs
    ]
    pairs = [_pairs(mine.records, theirs.records) for mine, theirs in both]
    pairs = [some for some in pairs if some]
    if not pairs:
        return None
    latencies = [
        np.array([[a.end_to_end_seconds, b.end_to_end_seconds] for a, b in some]) for some in pairs
    ]
    low, high = bootstrap_interval(latencies)
    texts = [(a.text, b.text) for some in pairs for a, b in some if a.text or b.text]
    return SpeedUp(
        cell,
        ours,
        other,
        float(np.median([_ratio(each) for each in latencies])),
        low,
        high,
        len(pairs),
        sum(map(len, pairs)),
        float(np.mean([a == b for a, b in texts])) if texts else None,
    )


def _pairs(
    ours: Sequence[RequestRecord], others: Sequence[RequestRecord]
) -> list[tuple[RequestRecord, RequestRecord]]:
    by_id = {record.prompt_id: record for record in others}
    return [(record, by_id[record.prompt_id]) for record in ours if record.prompt_id in by_id]


def _ratio(latencies: np.ndarray) -> float:
    ours, others = latencies.sum(axis=0)
    return others / ours


def bootstrap_interval(latencies: Sequence[np.ndarray]) -> tuple[float, float]:
    """Bounds of the ratio's interval. latencies: for each repetition float [requests, 2], ours and
    the other's."""
    rng = np.random.default_rng(0)  # the same page from the same runs
    drawn = []
    for each in latencies:
        chosen = rng.integers(0, len(each), size=(NUM_DRAWS, len(each)))
        sums = each[chosen].sum(axis=1)
        drawn.append(sums[:, 1] / sums[:, 0])
    of_repetition = np.array(drawn)  # [repetitions, draws]
    which = rng.integers(0, len(drawn), size=(NUM_DRAWS, len(drawn)))
    of_draw = of_repetition[which, np.arange(NUM_DRAWS)[:, None]]
    low, high = np.percentile(np.median(of_draw, axis=1), INTERVAL)
    return float(low), float(high)


def best_fixed(matrix: Matrix, figures: Sequence[CellFigures]) -> dict[str, str]:
    """The variant of a fixed length with the lowest mean latency, by cell name: known only
    afterwards."""
    fixed = {
        variant.name for variant in matrix.variants if (variant.policy or "").startswith("fixed")
    }
    best: dict[str, str] = {}
    for each in sorted(figures, key=lambda each: each.end_to_end.mean):
        if each.variant in fixed:
            best.setdefault(each.cell.name, each.variant)
    return best


def geometric_mean(ratios: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))
