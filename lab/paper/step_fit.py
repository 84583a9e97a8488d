"""The paper's linear step time against measured steps of vLLM on an H100: how much a line leaves
unexplained.

A step takes constant + per context token + per token fed, and per draft pass a constant + per row.
Contexts are alike in all cells, so the coefficients of context and row cannot be told apart: one of
them is enough.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smartspec.report.page_parts import Line, Plot, Section, Table

MEASURED = Path(__file__).parents[2] / "docs/results/h100.jsonl"
COMMAND = "python -m lab.paper"


@dataclass(frozen=True)
class Step:
    """Median of steps alike. rows: requests. fed: tokens of the target's pass. passes: of the draft
    head."""

    rows: float
    fed: float
    passes: int
    milliseconds: float


def measured_steps(path: Path = MEASURED) -> list[Step]:
    """Steps without prefill, all with a captured graph, of cells with one length. A head that is
    loaded runs at least one pass."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    cells = [
        line
        for line in lines
        if line.get("cell", "").startswith(("off", "stock:")) and "alike" in line
    ]
    return [
        Step(
            step["rows"],
            step["fed"],
            0 if cell["job"] == "off" else max(step["drafted"], 1),
            step["ms"],
        )
        for cell in cells
        if cell["job"] in ("off", "eagle3")
        for step in cell["alike"]
        if not step["prefill"]
        and step["graph"] == "full"
        and step["verified_length"] == step["drafted"]
    ]


def fit(steps: list[Step]) -> tuple[np.ndarray, float]:
    """Predicted milliseconds of all steps, and R2."""
    measured = np.array([step.milliseconds for step in steps])
    design = np.array([(1.0, s.rows, s.fed, s.passes, s.passes * s.rows) for s in steps])
    predicted = design @ np.linalg.lstsq(design, measured, rcond=None)[0]
    return predicted, 1.0 - float(
        ((measured - predicted) ** 2).sum() / ((measured - measured.mean()) ** 2).sum()
    )


def fit_section(steps: list[Step]) -> Section:
    """The section of the page."""
    predicted, r2 = fit(steps)
    errors = [
        100 * (p / s.milliseconds - 1) for s, p in zip(steps, predicted.tolist(), strict=True)
    ]
    by_passes = {}
    for step, error in sorted(zip(steps, errors, strict=True), key=lambda pair: pair[0].fed):
        by_passes.setdefault(step.passes, []).append((step.fed, error))
    lines = [
        Line(f"{n} draft passes", *map(tuple, zip(*by_passes[n], strict=True)))
        for n in sorted(by_passes)
    ]
    worst = sorted(
        zip(steps, predicted.tolist(), errors, strict=True), key=lambda row: -abs(row[2])
    )
    return Section(
        title="The paper's linear step time against measured steps (H100)",
        text=(
            f"R2 is {r2:.3f} over {len(steps)} kinds of steps of vLLM with Llama-3.1-8B's shape "
            "and an EAGLE-3 head (docs/results/h100.md). A large R2 comes from the longest steps. "
            "A decision compares short ones: there the line is off by "
            f"{np.median(np.abs(errors)):.0f} % in the median and by {abs(worst[0][2]):.0f} % in "
            "the worst. A pass takes as long as reading the weights up to a number of tokens, and "
            "then longer in leaps, as graphs and tiles have sizes.",
        ),
        plots=(
            Plot(
                "Residuals: predicted over measured",
                "tokens of the target's pass",
                "error, %",
                tuple(lines),
                log_x=True,
                reference=0.0,
            ),
        ),
        tables=(
            Table(
                "Worst first",
                ("requests", "tokens fed", "draft passes", "measured, ms", "line, ms", "error"),
                tuple(
                    (
                        f"{s.rows:.0f}",
                        f"{s.fed:.0f}",
                        str(s.passes),
                        f"{s.milliseconds:.2f}",
                        f"{p:.2f}",
                        f"{e:+.1f}%",
                    )
                    for s, p, e in worst
                ),
                "Least squares over these steps themselves: no other line is nearer.",
            ),
        ),
        command=COMMAND,
    )
