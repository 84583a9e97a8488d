"""What a width of its own for every request's draft tree would bring over one width per step, in hindsight.

Requests of two classes, each with an acceptance of its own, are all known, and so is the time of passes. For each batch
the planner is asked for the best plan with one width out of 1 and 4 for all, as it is in serving; then widths are
changed request by request as long as that raises predicted tokens per second; then all trees are as wide as can be at
the price of chains, which no widths can beat.

    python benchmarks/tree_widths.py
    python benchmarks/tree_widths.py --model llama-3.1-70b --sibling-share 0.4

Every node of a level is paid for. The engine leaves out those that cannot be in a draft, which depends on the request
already, so what is left for a width to save is less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from smartspec.control.goodput.choice import best_choice

from smartspec.control.goodput.settings import GoodputSettings
from smartspec.control.policy import Estimates
from smartspec.control.records import BatchView, DrafterView
from smartspec.sim.executor import HEAD
from smartspec.sim.hardware import roofline
from smartspec.sim.time_truth import TimeTruth
from smartspec.sim.tree_drafts import true_siblings

MODELS = {"llama-3.1-8b": 1, "llama-3.1-70b": 4}  # devices of each
MIXES = ((0.8, 0.4), (0.9, 0.3), (0.7, 0.5))
BATCH_SIZES, WIDTHS, LONGEST, CONTEXT, SPREAD = (2, 4, 8, 16), (1, 4), 30, 1024, 8.0


def main(
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}, on H100s.")] = "llama-3.1-8b",
    sibling_share: Annotated[float, typer.Option(help="Of the cases elders leave, those a sibling takes.")] = 0.2,
    seeds: Annotated[int, typer.Option(min=1, help="Batches of each mix and size.")] = 3,
) -> None:
    """Print a table by mix and batch size."""
    target, head = (roofline("h100", name, MODELS[model]) for name in (model, f"eagle-{model}"))
    time = TimeTruth(target, (head,), host_seconds=1e-3)
    table = Table("acceptance", "requests", "width per request", "at most", title="tokens per second over one width")
    for mix in MIXES:
        for num_rows in BATCH_SIZES:
            gains = np.mean([_gains(time, mix, num_rows, sibling_share, seed) for seed in range(seeds)], axis=0)
            table.add_row(", ".join(map(str, mix)), str(num_rows), *(f"{100 * gain:+.2f} %" for gain in gains))
    Console().print(table)


@dataclass(frozen=True)
class OwnWidths:
    """Times of steps in which row i feeds widths[i] nodes to every pass but the first, as a planner asks for them."""

    time: TimeTruth
    widths: Sequence[int]

    @property
    def host_seconds(self) -> float:
        return self.time.host_seconds

    def target_seconds(self, view: BatchView, num_draft_tokens: np.ndarray) -> np.ndarray:
        return self.time.target_seconds(view, num_draft_tokens)

    def draft_seconds(self, view: BatchView, drafter: np.ndarray, max_depth: int, width: int = 1) -> np.ndarray:
        chains, wider = (self.time.draft_seconds(view, drafter, max_depth, each) for each in WIDTHS)
        return chains + (wider - chains) * np.mean(np.array(self.widths) == WIDTHS[1])


def _gains(time: TimeTruth, mix: tuple[float, ...], num_rows: int, sibling_share: float, seed: int) -> list[float]:
    """What widths by request, and trees at the price of chains, bring over the best common width."""
    mean = np.resize(mix, num_rows)
    acceptance = np.random.default_rng(seed).beta(SPREAD * mean, SPREAD * (1 - mean))
    drafter = DrafterView(np.full(num_rows, LONGEST), lag=np.zeros(num_rows, dtype=np.int64))
    limits = np.full((2, num_rows), [[CONTEXT], [LONGEST]])
    view = BatchView(np.arange(num_rows), *limits, drafters=(drafter,))
    survival = np.cumprod(np.repeat(acceptance[:, None], LONGEST, axis=1), axis=1)[None]
    chains = Estimates((HEAD,), survival, time, siblings=true_siblings(HEAD, sibling_share))
    trees = chains.of_width(WIDTHS[1])

    def goodput(widths: Sequence[int], paid: Sequence[int] | None = None) -> float:
        is_wide = (np.array(widths) == WIDTHS[1])[None, :, None]
        made = np.where(is_wide, trees.survival, chains.survival)
        depths = np.where(is_wide, trees.depths, np.arange(1, LONGEST + 1))
        times = OwnWidths(time, widths if paid is None else paid)
        # No siblings: this is the shape, and no other is to be tried.
        mixed = Estimates((HEAD,), made, times, width=WIDTHS[1], depths=depths)
        settings = replace(GoodputSettings(), widths=(WIDTHS[1],))
        return best_choice(view, mixed, settings, fairness=0.0).plan.goodput

    widths = max(([width] * num_rows for width in WIDTHS), key=goodput)
    common = best = goodput(widths)
    for row in [*range(num_rows)] * 2:
        changed = [*widths[:row], sum(WIDTHS) - widths[row], *widths[row + 1 :]]
        if (found := goodput(changed)) > best:
            best, widths = found, changed
    return [best / common - 1, goodput([WIDTHS[1]] * num_rows, [1] * num_rows) / common - 1]


if __name__ == "__main__":
    typer.run(main)
