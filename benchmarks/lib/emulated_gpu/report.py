"""Measured cells as tables in Markdown, the worst one first."""

from collections.abc import Iterable

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
    """Tokens per second of each policy; SmartSpec's relative to the best other one, and to off."""
    rows = []
    for cells in by_scene(found).values():
        cell = next(iter(cells.values()))[0]
        speed = {name: figures["tokens_per_second"] for name, (_, figures) in cells.items()}
        others = [value for name, value in speed.items() if name != OURS]
        ours = speed.get(OURS, float("nan"))
        of_best = ours / max(others) if others else float("nan")
        of_off = ours / speed[OFF] if OFF in speed else float("nan")
        figures = [f"{speed[name]:.0f}" if name in speed else "-" for name in policies]
        rows.append((of_best, [*_scene(cell), *figures, f"{of_best:.3f}", f"{of_off:.2f}"]))
    return markdown((*_SCENE, *policies, "of best", "of off"), [row for _, row in sorted(rows, key=lambda r: r[0])])


def details(found: dict[Cell, dict]) -> str:
    """Everything else, a line for each cell; the worst idle time first."""
    rows = [
        [
            *_scene(cell),
            cell.policy,
            f"{f['tokens_per_second']:.0f}",
            f"{100 * f['idle']:.1f}",
            f"{f['schedule_ms']:.2f}",
            f"{f['update_ms']:.2f}",
            f"{f['drafted']:.2f}",
            f"{f['verified']:.2f}",
            f"{f['tokens_per_step']:.2f}",
            f"{100 * f['graphs']:.0f}",
            *(f"{1e3 * f[name]:.1f}" for name in ("ttft", "tpot", "e2e")),
        ]
        for cell, f in sorted(found.items(), key=lambda pair: -pair[1]["idle"])
    ]
    columns = (
        "policy", "tokens/s", "idle %", "schedule ms", "update ms", "drafted", "verified", "tokens/step", "graphs %",
        "TTFT ms", "TPOT ms", "E2E ms",
    )  # fmt: skip
    return markdown((*_SCENE, *columns), rows)


_SCENE = ("GPU", "drafter", "load")


def _scene(cell: Cell) -> list[str]:
    return [cell.setup, cell.drafter, cell.load + ("" if cell.is_async else " sync")]
