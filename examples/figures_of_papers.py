"""One figure of each of six papers, in simulation, in about two minutes. Each is a function that
returns a table.

    python examples/figures_of_papers.py
    python examples/figures_of_papers.py synergy magicdec

The machines are H100s and the acceptance is drawn, so numbers are other than the papers'; what is
compared is the shape of the figure, which the note below each table states.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import simulate_static
from smartspec.sim.static_load import Phase, StaticLog

STEPS = 120
BATCHES = (1, 4, 16, 64, 256)


@dataclass(frozen=True)
class Figure:
    """title: the paper and what is shown. rows: of cells, each begins with its name. note: the
    shape to look for."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    note: str


def run(policy: str, batch: int, steps: int, context: int = 512, **settings) -> StaticLog:
    """A steady batch in simulation. settings: of a Scenario."""
    scenario = Scenario(policy=policy, batch=batch, **{"acceptance": "0.7"} | settings)
    return simulate_static(
        scenario, [Phase(steps, batch, context_tokens=context, output_tokens=200)]
    )


def speed(policy: str, batch: int, steps: int, **settings) -> float:
    """Expected tokens per second in the second half of the steps."""
    return run(policy, batch, steps, **settings).expected_goodput(slice(steps // 2, None))


def smartspec(steps: int = STEPS) -> Figure:
    rows = []
    for acceptance in ("0.5", "0.7", "0.9"):
        logs = [run("smartspec-paper:1", batch, steps, acceptance=acceptance) for batch in BATCHES]
        lengths = [
            log.verified[steps // 2 :].sum() / log.num_rows[steps // 2 :].sum() for log in logs
        ]
        rows.append([f"acceptance {acceptance}", *(f"{length:.1f}" for length in lengths)])
    return Figure(
        "SmartSpec, arXiv 2406.14066: proposed length by requests",
        _by_batch(),
        rows,
        "Lengths fall with the batch and rise with acceptance.",
    )


def synergy(steps: int = STEPS) -> Figure:
    plain = {batch: speed("off", batch, steps) for batch in BATCHES}
    rows = [
        [
            f"length {length}",
            *(f"{speed(f'fixed:{length}', batch, steps) / plain[batch]:.2f}" for batch in BATCHES),
        ]
        for length in (1, 2, 4, 8)
    ]
    return Figure(
        "Synergy, arXiv 2310.18813: speed over plain decoding by requests",
        _by_batch(),
        rows,
        "The best length falls as the batch grows.",
    )


def magicdec(steps: int = STEPS) -> Figure:
    rows = []
    for context in (512, 4096, 16384):
        options = {"model": "70b", "tensor_parallel": 8, "context": context}
        speeds = [
            speed("fixed:5", b, steps, **options) / speed("off", b, steps, **options)
            for b in BATCHES
        ]
        rows.append([f"{context} tokens of context", *(f"{value:.2f}" for value in speeds)])
    return Figure(
        "MagicDec, arXiv 2408.11049: speed of length 5 over plain decoding by requests",
        _by_batch(),
        rows,
        "With long contexts drafts pay at batch sizes at which they do not with short ones.",
    )


def specdecpp(steps: int = STEPS) -> Figure:
    rows = []
    for policy in (
        "fixed:2",
        "fixed:4",
        "fixed:8",
        "specdec++:0.2",
        "specdec++:0.5",
        "specdec++:0.8",
    ):
        log = run(policy, 16, steps, acceptance="0.7/4/2", max_draft_tokens=20)
        emitted, verified = log.expected_emitted.sum(), log.verified.sum()
        discarded = verified - (emitted - log.num_rows.sum())
        rows.append([policy, f"{log.num_rows.sum() / emitted:.3f}", f"{discarded / emitted:.3f}"])
    return Figure(
        "SpecDec++, arXiv 2405.19715: target passes and discarded draft tokens, each per token",
        ("", "passes", "discarded"),
        rows,
        "The thresholds lie below and left of the fixed lengths.",
    )


def sequoia(steps: int = STEPS) -> Figure:
    sizes, rows = (4, 8, 16, 32, 63), []
    for name, policy in (("chain", "fixed"), ("tree", "sequoia")):
        logs = [
            run(
                f"{policy}:{size}",
                1,
                4 * steps,
                drafter="head",
                acceptance="0.6",
                max_draft_tokens=63,
            )
            for size in sizes
        ]
        tokens = [log.expected_emitted[2 * steps :].mean() for log in logs]
        rows.append([name, *(f"{number:.2f}" for number in tokens)])
    return Figure(
        "Sequoia, arXiv 2402.12374: tokens of a step by draft tokens",
        ("", *map(str, sizes)),
        rows,
        "Chains end early; trees go on growing with the logarithm of their size.",
    )


def nightjar(steps: int = STEPS) -> Figure:
    options = {"draft_model": "llama-3.2-1b", "acceptance": "0.6"}
    few = (1, 64, 256)
    plain = {batch: speed("off", batch, steps, **options) for batch in few}
    rows = [
        [
            policy,
            *(f"{speed(policy, batch, 10 * steps, **options) / plain[batch]:.2f}" for batch in few),
        ]
        for policy in ("fixed:3", "banditspec", "nightjar")
    ]
    return Figure(
        "Nightjar, arXiv 2512.22420: speed over plain decoding by requests",
        _by_batch(few),
        rows,
        "A fixed length loses at high load. The bandits lose less: what they spend on trying "
        "lengths out.",
    )


FIGURES: dict[str, Callable[[], Figure]] = {
    each.__name__: each for each in (smartspec, synergy, magicdec, specdecpp, sequoia, nightjar)
}


def _by_batch(batches: tuple[int, ...] = BATCHES) -> tuple[str, ...]:
    return ("", *(f"{batch} requests" for batch in batches))


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in FIGURES]:
        sys.exit(f"no figure {unknown[0]!r}: use {', '.join(FIGURES)}")
    for name in names or FIGURES:
        figure = FIGURES[name]()
        print(f"\n{figure.title}\n")
        for row in (figure.columns, *figure.rows):
            print(
                "".join(cell.ljust(26) if not i else cell.rjust(14) for i, cell in enumerate(row))
            )
        print(f"\n{figure.note}")


if __name__ == "__main__":
    main(sys.argv[1:])
