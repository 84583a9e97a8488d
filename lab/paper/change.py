"""Estimated against true acceptance over time, through a change: a steady batch whose drafts get
worse, then better."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from lab.paper.lengths import PAIR
from lab.paper.points import Figure, Point, Settings, Values
from lab.paper.virtual_run import run_virtually
from smartspec.control.log.decision import DecisionRecord
from smartspec.report.page_parts import Line, Plot, Section, Table
from smartspec.sim.scenario import Scenario

NAME = "change"
BATCHES = (1, 8, 64)
# seconds from which on draft tokens are accepted with that chance
CHANCES = ((0.0, 0.8), (4.0, 0.4), (8.0, 0.8))
END, BIN, CLOSE = 12.0, 0.25, 0.05
ACCEPTANCE = str(CHANCES[0][1]) + "".join(f">{chance}@{second:g}" for second, chance in CHANCES[1:])


def change_figure() -> Figure:
    """A run for every size of batch."""
    run = PAIR | {
        "policy": "goodput",
        "acceptance": ACCEPTANCE,
        "output_tokens": 250,
        "prompt_tokens": 200,
    }
    return Figure(NAME, tuple(run | {"batch": batch} for batch in BATCHES), measure)


def measure(settings: Settings) -> Values:
    """By bins of BIN seconds: mean estimate of the acceptance of a first draft token. null in one
    without a step."""
    told: list[tuple[float, float]] = []

    def note(record: DecisionRecord) -> None:
        if record.view.now > END:
            raise _Ended
        if record.view.num_rows:
            told.append((record.view.now, float(record.survival[:, 0].mean())))

    with suppress(_Ended):
        run_virtually(Scenario(num_requests=10_000, **settings), on_record=note)
    moments, estimates = np.array(told).T
    bins = np.floor(moments / BIN).astype(int)
    means = [estimates[bins == number] for number in range(round(END / BIN))]
    return {"estimates": [round(float(mean.mean()), 4) if len(mean) else None for mean in means]}


class _Ended(Exception):
    """Enough has been seen."""


def change_section(points: Sequence[Point]) -> Section:
    """The section of the page."""
    moments = (np.arange(round(END / BIN)) + 0.5) * BIN
    true = np.array(
        [[chance for second, chance in CHANCES if second <= moment][-1] for moment in moments]
    )
    lines, rows = [Line("true", tuple(moments.tolist()), tuple(true.tolist()))], []
    for settings, values in points:
        known = [
            (m, e)
            for m, e in zip(moments.tolist(), values["estimates"], strict=True)
            if e is not None
        ]
        name = "1 request" if settings["batch"] == 1 else f"{settings['batch']} requests"
        lines.append(Line(name, *map(tuple, zip(*known, strict=True))))
        rows.append((name, *(_until_close(dict(known), second) for second, _ in CHANCES)))
    return Section(
        title="Estimated against true acceptance over time (simulated)",
        text=(
            "Vicuna-7B with its 160M draft model on an A100, so many requests at all times, policy "
            "goodput. The chance of a draft token changes for all at the same moments. The "
            "estimate is that of a first draft token, mean over requests, before its step. Where "
            "nothing is drafted, nothing is seen: the estimate waits for trials.",
        ),
        plots=(
            Plot(
                "Acceptance of a draft token",
                "seconds from the start",
                "chance",
                tuple(lines),
                marks=tuple(second for second, _ in CHANCES[1:]),
            ),
        ),
        tables=(
            Table(
                f"Seconds until the estimate is within {CLOSE} of what is true",
                ("requests", *(f"{chance} from {second:g} s" for second, chance in CHANCES)),
                tuple(rows),
                f"In steps of {BIN} s. The controller begins with an assumption.",
            ),
        ),
        command="python -m lab.paper",
    )


def _until_close(estimates: dict[float, float], begin: float) -> str:
    """From a moment at which the chance changes. -: not before the next one."""
    chance = dict(CHANCES)[begin]
    end = min((second for second, _ in CHANCES if second > begin), default=END)
    close = [m for m, e in estimates.items() if begin < m < end and abs(e - chance) <= CLOSE]
    return f"{close[0] + BIN / 2 - begin:.2f}" if close else "-"
