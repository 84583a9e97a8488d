"""Measured cells as tables in Markdown, the worst one first."""

from collections.abc import Callable, Iterable
from pathlib import Path

from lib.emulated_gpu.cells import OFF, Cell

OURS = "goodput"
Rows = Iterable[Iterable[object]]


def markdown(columns: Iterable[str], rows: Rows) -> str:
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def by_scene(found: dict[Cell, dict]) -> dict[tuple, dict[str, tuple[Cell, dict]]]:
    """Cells of all policies, by scene."""
    scenes: dict[tuple, dict[str, tuple[Cell, dict]]] = {}
    for cell, figures in found.items():
        scenes.setdefault(cell.scene, {})[cell.policy] = cell, figures
    return scenes


def speeds(found: dict[Cell, dict], policies: list[str]) -> str:
    """Closed loops: tokens per second of each policy; SmartSpec's relative to the best other one,
    and to off."""
    scenes = by_scene({cell: figures for cell, figures in found.items() if cell.is_closed})
    return _compared(scenes, policies, "tokens_per_second", 1.0, max)


def latencies(found: dict[Cell, dict], policies: list[str]) -> str:
    """Requests that come at given moments: mean milliseconds to the last token, and the same
    ratios."""
    scenes = by_scene({cell: figures for cell, figures in found.items() if not cell.is_closed})
    return _compared(scenes, policies, "e2e", 1e3, min)


def _compared(scenes: dict, policies: list[str], figure: str, unit: float, best: Callable) -> str:
    """best: of several values, max or min. Empty without scenes."""
    rows = []
    for cells in scenes.values():
        cell = next(iter(cells.values()))[0]
        values = {name: unit * figures[figure] for name, (_, figures) in cells.items()}
        others = [value for name, value in values.items() if name != OURS]
        ours = values.get(OURS, float("nan"))
        of_best = ours / best(others) if others else float("nan")
        of_off = f"{ours / values[OFF]:.2f}" if OFF in values else "-"
        shown = [f"{values[name]:,.0f}" if name in values else "-" for name in policies]
        rows.append((of_best, [*_scene(cell), *shown, f"{of_best:.3f}", of_off]))
    rows.sort(key=lambda row: row[0], reverse=best is min)
    return (
        markdown((*_SCENE, *policies, "of best", "of off"), [row for _, row in rows])
        if rows
        else ""
    )


def details(found: dict[Cell, dict]) -> str:
    """Everything else, a line for each cell; the worst idle time first."""
    rows = [
        [
            *_scene(cell),
            cell.policy,
            f"{f['tokens_per_second']:.0f}",
            f"{100 * f['idle']:.1f}",
            *(
                _shown(f, name)
                for name in ("schedule_ms", "our_schedule_ms", "update_ms", "our_update_ms")
            ),
            _shown(f, "our_meanwhile_ms"),
            f"{f['drafted']:.2f}",
            f"{f['verified']:.2f}",
            f"{f['tokens_per_step']:.2f}",
            f"{100 * f['graphs']:.0f}",
            *(f"{1e3 * f[name]:.1f}" for name in ("ttft", "tpot", "e2e")),
        ]
        for cell, f in sorted(found.items(), key=lambda pair: -pair[1]["idle"])
    ]
    columns = (
        "policy", "tokens/s", "idle %", "schedule ms", "ours", "update ms", "ours", "meanwhile ms",
        "drafted", "verified", "tokens/step", "graphs %",
        "TTFT ms", "TPOT ms", "E2E ms",
    )  # fmt: skip
    return markdown((*_SCENE, *columns), rows)


_SCENE = ("GPU", "drafter", "load")


def _shown(figures: dict, name: str) -> str:
    """A dash for what older records lack."""
    return f"{figures[name]:.2f}" if name in figures else "-"


def _scene(cell: Cell) -> list[str]:
    kind, _, value = cell.load.partition(":")
    load = f"{kind}:{Path(value).name}"
    return [cell.setup, cell.drafter, load + ("" if cell.is_async else " sync")]
