"""Chains and trees of an EAGLE-3 head under each policy's controller, by batch size, simulated on
H100s."""

from collections.abc import Iterable
from itertools import product

from rich.console import Console
from rich.table import Table

from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import simulate_static
from smartspec.sim.static_load import Phase

DEVICES = {"8b": 1, "70b": 4}
# What each column is: the drafter, which makes chains alone or trees too, and who decides.
COLUMNS = {
    "chain of 5": ("model", "fixed:5"),
    "eagle2:60": ("head", "eagle2"),
    "ddd": ("head", "ddd"),
    "goodput, chains": ("model", "goodput"),
    "goodput, trees too": ("head", "goodput"),
}


def rows_of(
    models: Iterable[str],
    batches: Iterable[int],
    nodes: int,
    later_child_share: float,
    context: int,
    pairs: int,
) -> list[dict]:
    """Of each model and batch size, by column: tokens per second, and draft tokens verified."""
    rows = []
    for model, batch in product(models, batches):
        shared = {
            "model": model,
            "tensor_parallel": DEVICES.get(model, 1),
            "batch": batch,
            "acceptance": "eagle3",
            "max_draft_tokens": nodes,
        }
        steps = max(60, pairs // batch)
        row = {
            "model": model,
            "batch": batch,
            "off": speed(Scenario(policy="off", **shared), context, steps)[0],
        }
        for name, (drafter, policy) in COLUMNS.items():
            share = {"later_child_share": later_child_share} if drafter == "head" else {}
            scenario = Scenario(policy=policy, drafter=drafter, **shared, **share)
            row[name], row[f"{name}: verified"] = speed(scenario, context, steps)
        rows.append(row)
        print(model, f"{batch} requests:", *_cells(row), flush=True)
    return rows


def speed(scenario: Scenario, context: int, steps: int) -> tuple[float, float]:
    """Expected tokens per second, and draft tokens verified per request and step."""
    assert scenario.batch is not None
    phase = Phase(steps, scenario.batch, context_tokens=context, output_tokens=200)
    log, counted = simulate_static(scenario, [phase]), slice(steps // 2, None)
    return log.expected_goodput(counted), float(
        log.verified[counted].sum() / log.num_rows[counted].sum()
    )


def print_table(rows: list[dict]) -> None:
    table = Table(
        "model",
        "requests",
        *COLUMNS,
        title="speed over off (draft tokens verified per request and step)",
    )
    for row in rows:
        table.add_row(row["model"], str(row["batch"]), *_cells(row))
    Console(width=140).print(table)


def _cells(row: dict) -> list[str]:
    return [f"{row[name] / row['off']:.2f} ({row[f'{name}: verified']:.1f})" for name in COLUMNS]
