"""How many times as fast one variant is as another.

A speed-up is the other's mean end-to-end latency over ours, of the same requests, within one
repetition. It is the median over repetitions. Its interval is a bootstrap: repetitions are drawn
again, and within each its pairs of requests, so that what differs from run to run counts as well as
what differs from request to request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smartspec.report.folder import Runs
from smartspec.report.matrix import Cell, Matrix
from smartspec.workload.records import RequestRecord

NUM_DRAWS = 2000
INTERVAL = (5.0, 95.0)  # percentiles: 90 %
MIN_REPETITIONS = 3  # fewer know too little of what differs between runs
NOISE, TOO_FEW = "inside the noise", "too few repetitions"


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


def speed_ups(matrix: Matrix, runs: Runs, ours: str) -> list[SpeedUp]:
    """ours against each other variant in each cell where both were measured; the worst first."""
    others = [variant.name for variant in matrix.variants if variant.name != ours]
    found = [_speed_up(runs, cell, ours, other) for cell in matrix.cells for other in others]
    return sorted(filter(None, found), key=lambda each: each.ratio)


def _speed_up(runs: Runs, cell: Cell, ours: str, other: str) -> SpeedUp | None:
    repetitions = sorted({key[2] for key in runs if key[1] == cell.name})
    both = [
        _pairs(runs[ours, cell.name, r].records, runs[other, cell.name, r].records)
        for r in repetitions
        if (ours, cell.name, r) in runs and (other, cell.name, r) in runs
    ]
    pairs = [some for some in both if some]
    if not pairs:
        return None
    latencies = [
        np.array([[a.end_to_end_seconds, b.end_to_end_seconds] for a, b in some]) for some in pairs
    ]
    ratios = [others / ours for ours, others in (each.sum(axis=0) for each in latencies)]
    texts = [(a.text, b.text) for some in pairs for a, b in some if a.text or b.text]
    return SpeedUp(
        cell,
        ours,
        other,
        float(np.median(ratios)),
        *bootstrap_interval(latencies),
        len(pairs),
        sum(map(len, pairs)),
        float(np.mean([a == b for a, b in texts])) if texts else None,
    )


def _pairs(
    ours: Sequence[RequestRecord], others: Sequence[RequestRecord]
) -> list[tuple[RequestRecord, RequestRecord]]:
    by_id = {record.prompt_id: record for record in others}
    return [(record, by_id[record.prompt_id]) for record in ours if record.prompt_id in by_id]


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
