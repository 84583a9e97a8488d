"""Chains and trees of an EAGLE-3 head under each policy's controller, by batch size, simulated on H100s.

    python benchmarks/simulated_trees.py --output simulated_trees.json
    python benchmarks/simulated_trees.py --models 8b --batches 1,8,64 --sibling-share 0.1

A steady batch (`smartspec.sim.static_load`) with the acceptance by position published for EAGLE-3 (`smartspec simulate
--acceptance eagle3`) and, for younger siblings, the assumption that each is right in a share of the cases its elders
leave. Controllers have to learn what they decide by, and drafters say how confident they are. Speeds are expected
tokens over expected seconds of the second half of the steps, without noise, the controller's own time left out.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from smartspec.bench.report import write_json
from smartspec.sim.executor import SIBLING_SHARE
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


def main(
    models: Annotated[str, typer.Option(help="8b, 70b or shapes, separated by commas.")] = ",".join(DEVICES),
    batches: Annotated[str, typer.Option(help="Requests under way, separated by commas.")] = "1,2,4,8,16,32,64,128,256",
    nodes: Annotated[int, typer.Option(help="Most nodes of a draft.", min=5)] = 60,
    sibling_share: Annotated[float, typer.Option(help="Of the cases elders leave, those a sibling takes.")] = (
        SIBLING_SHARE
    ),
    context: Annotated[int, typer.Option(help="Tokens of each request's context.", min=1)] = 1024,
    pairs: Annotated[int, typer.Option(help="Requests times steps of each run, at least 60 steps.", min=1)] = 3000,
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Print a table of speeds over off by model and batch size."""
    rows = []
    for model in models.split(","):
        for batch in map(int, batches.split(",")):
            shared = {
                "model": model,
                "tensor_parallel": DEVICES.get(model, 1),
                "batch": batch,
                "acceptance": "eagle3",
                "max_draft_tokens": nodes,
            }
            steps = max(60, pairs // batch)
            row = {"model": model, "batch": batch, "off": speed(Scenario(policy="off", **shared), context, steps)[0]}
            for name, (drafter, policy) in COLUMNS.items():
                share = {"sibling_share": sibling_share} if drafter == "head" else {}
                scenario = Scenario(policy=policy, drafter=drafter, **shared, **share)
                row[name], row[f"{name}: verified"] = speed(scenario, context, steps)
            rows.append(row)
            print(model, f"{batch} requests:", *_cells(row), flush=True)
    _print(rows)
    if output is not None:
        write_json(output, {"sibling_share": sibling_share, "context": context, "pairs": pairs, "rows": rows})


def speed(scenario: Scenario, context: int, steps: int) -> tuple[float, float]:
    """Expected tokens per second, and draft tokens verified per request and step."""
    assert scenario.batch is not None
    phase = Phase(steps, scenario.batch, context_tokens=context, output_tokens=200)
    log, counted = simulate_static(scenario, [phase]), slice(steps // 2, None)
    return log.expected_goodput(counted), float(log.verified[counted].sum() / log.num_rows[counted].sum())


def _print(rows: list[dict]) -> None:
    table = Table("model", "requests", *COLUMNS, title="speed over off (draft tokens verified per request and step)")
    for row in rows:
        table.add_row(row["model"], str(row["batch"]), *_cells(row))
    Console(width=140).print(table)


def _cells(row: dict) -> list[str]:
    return [f"{row[name] / row['off']:.2f} ({row[f'{name}: verified']:.1f})" for name in COLUMNS]


if __name__ == "__main__":
    typer.run(main)
