"""The page docs/results/gpu-replay.md, from rows of the replay."""

from collections.abc import Sequence
from datetime import date
from itertools import chain

from lib.gpu_replay.cells import Row, geometric_mean
from lib.trace_pages import table
from lib.trace_tables import commit

GOAL = 0.97  # of the best fixed length; less is bold

PAGE = """# One draft length for all requests, on a replayed GPU

    {command}

Commit {commit}, {date}, machine: simulated. Step times of vLLM are played as
measured on an [H100](h100.md) and an [H200](h200.md), by length, number of requests, and with or
without prompts. What was not measured on the H200 is the H100's time, scaled. All requests of a
step share one length: 0, 1, 3 or 5. Closed loop, prompts of 128 tokens, answers of 128 to 256,
{seeds} seeds. The controller starts with step times of 1 to 4 requests, and its own time is free.

*of best*: tokens per second relative to the best fixed length of the cell; below {goal}, bold.
*of 0*: relative to no drafts. *best*: that length. *lengths*: the most used ones, in percent of
steps. *seen*: by seed, steps after the change until a length within 1 % of the best is in use.

{summary}

Acceptance: mixed 0.5 and 0.85, low 0.3, high 0.85, falls 0.85 to 0.3, rises 0.3 to 0.85 (measured
for 1.5 s after the change). Burst: mixed, from the first step on. The worst cell comes first.

{cells}
"""


def page(rows: dict[str, list[Row]], command: str, seeds: int) -> str:
    """rows: by card."""
    return PAGE.format(
        command=command,
        commit=commit(),
        date=date.today().isoformat(),
        seeds=seeds,
        goal=GOAL,
        summary=summary_table(rows),
        cells=cells_table(rows),
    )


def summary_table(rows: dict[str, list[Row]]) -> str:
    return table(
        ["card", "policy", "cells", "geometric mean", "worst", "worst of 0"],
        [[card, f"`{name}`", *_summary(found)] for (card, name), found in _groups(rows).items()],
    )


def cells_table(rows: dict[str, list[Row]]) -> str:
    """A line for each cell, with columns for each card and policy."""
    groups = _groups(rows)
    has_policies = len({policy for _, policy in groups}) > 1
    heads = ["cell"]
    for card, policy in groups:
        name = f"{card}, `{policy}`" if has_policies else card
        heads += [f"{name}: of best", "of 0", "best", "lengths", "seen"]
    by_cell = {
        row.cell: [next(r for r in found if r.cell == row.cell) for found in groups.values()]
        for row in next(iter(groups.values()))
    }
    worst_first = sorted(by_cell.values(), key=lambda of_cell: min(row.of_best for row in of_cell))
    lines = [[rows[0].cell.name, *chain(*map(_figures, rows))] for rows in worst_first]
    return table(heads, lines)


def _groups(rows: dict[str, list[Row]]) -> dict[tuple[str, str], list[Row]]:
    policies = dict.fromkeys(row.policy for found in rows.values() for row in found)
    return {
        (card, policy): [row for row in found if row.policy == policy]
        for policy in policies
        for card, found in rows.items()
    }


def _summary(found: Sequence[Row]) -> list[object]:
    worst, mean = min(row.of_best for row in found), geometric_mean(row.of_best for row in found)
    return [len(found), f"{mean:.3f}", f"{worst:.3f}", f"{min(row.of_off for row in found):.3f}"]


def _figures(row: Row) -> list[str]:
    most_used = sorted(row.shares.items(), key=lambda item: -item[1])[:2]
    used = ", ".join(f"{length}: {share:.0%}" for length, share in most_used if share >= 0.05)
    seen = ", ".join("never" if steps is None else str(steps) for steps in row.steps_to_see)
    of_best = f"{row.of_best:.3f}" if row.of_best >= GOAL else f"**{row.of_best:.3f}**"
    return [of_best, f"{row.of_off:.3f}", str(row.best), used, seen]
