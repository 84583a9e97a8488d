"""What decision records say of a controller's predictions: of tokens per second, and of the time of
a step.

Records come from a simulated run or from the decision log of a live one; the figures are the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from smartspec.control.log.decision import DecisionRecord

EARLY_STEPS = 3  # in which nothing has been learned yet
_FIELDS = ("num_rows", "predicted_tokens", "emitted", "predicted_seconds", "seconds")


@dataclass
class StepTable:
    """Columns of decoding steps without prefill, one entry a step: decoding requests, expected and
    emitted tokens, predicted and measured seconds. A step with prefill emits first tokens too,
    which no goodput predicts."""

    num_rows: list[int] = field(default_factory=list)
    predicted_tokens: list[float] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    predicted_seconds: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, records: Iterable[DecisionRecord]) -> "StepTable":
        table = cls()
        for record in records:
            table.add(record)
        return table

    def add(self, record: DecisionRecord) -> None:
        """A step, unless it has prefill or no decoding request."""
        outcome = record.outcome
        if record.view.num_prefills or not record.view.num_rows:
            return
        self.num_rows.append(record.view.num_rows)
        self.predicted_tokens.append(record.goodput * record.predicted_seconds)
        self.emitted.append(outcome.num_emitted)
        self.predicted_seconds.append(record.predicted_seconds)
        self.seconds.append(outcome.seconds.total)

    def summary(self) -> dict:
        """JSON-able: a list of one entry for each size of batch (1, 2, 3 - 4, 5 - 8, ...), and the
        error of the first steps. Without a step: empty and None."""
        columns = {name: np.array(getattr(self, name), dtype=float) for name in _FIELDS}
        errors = np.abs(columns["predicted_seconds"] / columns["seconds"] - 1.0)
        sizes = np.ceil(np.log2(np.maximum(columns["num_rows"], 1))).astype(int)
        return {
            "sizes": [
                _of_size(columns, errors, sizes == size, 2**size)
                for size in np.unique(sizes).tolist()
            ],
            "early_error": float(np.median(errors[:EARLY_STEPS])) if len(errors) else None,
            "late_error": float(np.median(errors[EARLY_STEPS:]))
            if len(errors) > EARLY_STEPS
            else None,
        }


def _of_size(
    columns: dict[str, np.ndarray], errors: np.ndarray, chosen: np.ndarray, largest: int
) -> dict:
    """Steps of up to largest requests. Goodputs are tokens per second, sums over sums."""
    total = {name: float(values[chosen].sum()) for name, values in columns.items()}
    return {
        "largest": largest,
        "num_steps": int(chosen.sum()),
        "predicted_goodput": total["predicted_tokens"] / total["predicted_seconds"],
        "measured_goodput": total["emitted"] / total["seconds"],
        "seconds_bias": total["predicted_seconds"] / total["seconds"] - 1.0,
        "median_error": float(np.median(errors[chosen])),
        "p90_error": float(np.percentile(errors[chosen], 90)),
    }


def size_text(largest: int) -> str:
    """The numbers of requests that a size of batch stands for: 5 - 8."""
    smallest = largest // 2 + 1
    return f"{smallest} - {largest}" if smallest < largest else str(largest)
