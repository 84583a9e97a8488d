"""Where draft trees stop paying: the best chain and the best tree of an EAGLE-3 head, by batch size, on an H100.

Expected tokens per second of a steady batch, from a roofline of the hardware (`smartspec.sim.world.hardware`), and
acceptance by depth and rank. The first child of a node is accepted as published for EAGLE-3 (`--acceptance eagle3` of
`smartspec simulate`); each further sibling is right in a share of the cases that its elders leave. That share is an
assumption; 0 would make every tree a chain.

    python benchmarks/tree_crossing.py --output tree_crossing.json
    python benchmarks/tree_crossing.py --sibling-share 0.1 --context 4096

Target and head run on the same devices. A tree costs a pass of the head per depth, over those nodes that have children.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from smartspec.bench.report import write_json
from smartspec.sim.static_tree import StaticTree, best_tree
from smartspec.sim.world.class_spec import HEADS
from smartspec.sim.world.hardware import Roofline, roofline

MODELS = {"llama-3.1-8b": 1, "llama-3.1-70b": 4}  # devices of each
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TREE_SIZES = (*range(1, 17), 20, 24, 32, 48, 60)
MAX_DEPTH, NUM_RANKS = 8, 10


def main(
    sibling_share: Annotated[float, typer.Option(help="Of the cases elders leave, those a sibling takes.")] = 0.2,
    context: Annotated[int, typer.Option(help="Tokens of each request's context.", min=1)] = 1024,
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Print a table by model and batch size."""
    acceptance = rank_acceptance(sibling_share)
    rows = [
        crossing(model, devices, batch, context, acceptance)
        for model, devices in MODELS.items()
        for batch in BATCH_SIZES
    ]
    _print(rows)
    if output is not None:
        write_json(output, {"sibling_share": sibling_share, "context": context, "rows": rows})


def rank_acceptance(sibling_share: float) -> np.ndarray:
    """Chance of each child by depth and rank: float [MAX_DEPTH, NUM_RANKS]."""
    published = HEADS["eagle3"]
    first = published.mean.at(0.0) * published.decay ** np.arange(MAX_DEPTH)
    left = (1.0 - first)[:, None] * (1.0 - sibling_share) ** np.arange(NUM_RANKS - 1)
    return np.concatenate([first[:, None], sibling_share * left], axis=1)


def crossing(model: str, devices: int, batch: int, context: int, acceptance: np.ndarray) -> dict:
    """The best chain and tree at one batch size, as tokens per second over those without drafts."""
    target = roofline("h100", model, devices)
    head = roofline("h100", f"eagle-{model}", devices)
    off = batch / float(target.seconds(batch, batch * context, batch))
    row: dict = {"model": model, "devices": devices, "batch": batch, "off_tokens_per_second": off}
    for name, ranks in (("chain", 1), ("tree", NUM_RANKS)):
        trees = [best_tree(acceptance[:d, :ranks], n) for d in range(1, MAX_DEPTH + 1) for n in TREE_SIZES]
        speeds = [batch * tree.tokens_per_step / _step_seconds(target, head, tree, batch, context) for tree in trees]
        best = int(np.argmax(speeds))
        row |= {f"{name}_speedup": max(speeds[best] / off, 1.0)}
        row |= {f"{name}_nodes": len(trees[best].survival) if speeds[best] > off else 0}
        row |= {f"{name}_depth": int(trees[best].depths.max()) if speeds[best] > off else 0}
    return row


def _step_seconds(target: Roofline, head: Roofline, tree: StaticTree, batch: int, context: int) -> float:
    fed = batch * (1 + len(tree.survival))
    seconds = float(target.seconds(fed, batch * context, batch))
    for num_fed in tree.fed_by_pass.tolist():
        seconds += float(head.seconds(batch * num_fed, batch * context, batch))
    return seconds


def _print(rows: list[dict]) -> None:
    table = Table("model", "batch", "chain", "nodes", "tree", "nodes", "depth", "tree / chain", title="speed over off")
    for row in rows:
        table.add_row(
            f"{row['model']} on {row['devices']}",
            str(row["batch"]),
            f"{row['chain_speedup']:.2f}",
            str(row["chain_nodes"]),
            f"{row['tree_speedup']:.2f}",
            str(row["tree_nodes"]),
            str(row["tree_depth"]),
            f"{row['tree_speedup'] / row['chain_speedup']:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
