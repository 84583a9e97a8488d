"""Cells of the replay, and what each policy makes of them beside the fixed lengths."""

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from statistics import fmean

import numpy as np

from lib.gpu_replay.host import Host, Step
from lib.gpu_replay.step_times import LENGTHS, LEVELS, StepTimes, read_step_times

MIXED, LOW, HIGH = "0.5,0.85", "0.3", "0.85"
CHANGE = 2.5  # the second in which acceptance falls or rises
FALLS, RISES = f"{HIGH}>{LOW}@{CHANGE}", f"{LOW}>{HIGH}@{CHANGE}"
ABOUT_BEST = 0.99  # of the best fixed length: such a length is as good
SEEN_WITHIN = 10  # steps of which more than half have a new length, if it is in use
FIXED = {k: f"fixed:{k}" if k else "off" for k in LENGTHS}


@dataclass(frozen=True)
class Cell:
    """num_requests with that acceptance, measured from second to second (of virtual time)."""

    kind: str
    num_requests: int
    acceptance: str
    first: float
    last: float

    @property
    def name(self) -> str:
        return f"{self.kind} {self.num_requests}"

    @property
    def changes(self) -> bool:
        return ">" in self.acceptance


CELLS = (
    *(Cell("mixed", n, MIXED, 1.0, 4.0) for n in LEVELS),
    *(Cell("low", n, LOW, 1.0, 4.0) for n in (1, 16, 64, 128)),
    *(Cell("high", n, HIGH, 1.0, 4.0) for n in (1, 16, 64, 128)),
    *(Cell("falls", n, FALLS, CHANGE, 4.0) for n in (16, 64, 128)),
    *(Cell("rises", n, RISES, CHANGE, 4.0) for n in (16, 64, 128)),
    *(Cell("burst", n, MIXED, 0.0, 3.0) for n in (128, 256)),
)


@dataclass(frozen=True)
class Played:
    """A run of a cell. tokens_per_second, and lengths (of steps in which requests decoded), are of
    its measured time."""

    tokens_per_second: float
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """A policy in a cell, over all seeds. best: the best fixed length. of_best, of_off: its tokens
    per second to those of that length and of length 0. shares: of steps, by length. steps_to_see:
    by seed, those until a best length is in use after a change; None if it never is."""

    cell: Cell
    policy: str
    best: int
    of_best: float
    of_off: float
    shares: dict[int, float]
    steps_to_see: tuple[int | None, ...] = ()


def cells_of(names: str) -> list[Cell]:
    """Those of these kinds or names, with commas; all of "". ValueError for another name."""
    if not names:
        return list(CELLS)
    wanted = [name.strip() for name in names.split(",")]
    known = {cell.kind for cell in CELLS} | {cell.name for cell in CELLS}
    if unknown := [name for name in wanted if name not in known]:
        kinds = dict.fromkeys(cell.kind for cell in CELLS)
        raise ValueError(
            f"no cell is {unknown[0]!r}: use {', '.join(kinds)}, or one of them with its number of "
            f"requests, such as {CELLS[-1].name!r}"
        )
    return [cell for cell in CELLS if cell.name in wanted or cell.kind in wanted]


def play_cells(
    card: str,
    policies: list[str],
    cells: list[Cell],
    seeds: int,
    processes: int,
) -> list[Row]:
    """A row for each cell and policy."""
    runs = list(product(cells, dict.fromkeys([*FIXED.values(), *policies]), range(seeds)))
    with ProcessPoolExecutor(processes) as pool:
        played = dict(zip(runs, pool.map(partial(_play, card), runs, chunksize=4), strict=True))
    return [
        _row(cell, policy, {k: _of(played, cell, FIXED[k]) for k in LENGTHS}, found)
        for cell in cells
        for policy in policies
        for found in [_of(played, cell, policy)]
    ]


def geometric_mean(values: Iterable[float]) -> float:
    return float(np.exp(fmean(np.log(value) for value in values)))


def steps_to_see(lengths: tuple[int, ...], good: set[int]) -> int | None:
    """Steps before the first from which on a good length is in use: in that step, and in more than
    half of SEEN_WITHIN steps. None where there is none."""
    is_good = [length in good for length in lengths]
    stays = [fmean(is_good[i : i + SEEN_WITHIN]) > 0.5 for i in range(len(lengths))]
    return next((i for i, now in enumerate(is_good) if now and stays[i]), None)


_times = cache(read_step_times)


def _play(card: str, run: tuple[Cell, str, int]) -> Played:
    cell, policy, seed = run
    return play(_times(card), cell, policy, seed)


def play(times: StepTimes, cell: Cell, policy: str, seed: int) -> Played:
    host = Host(times, policy, cell.num_requests, cell.acceptance, seed)
    steps = [step for step in host.run(cell.last) if step.began >= cell.first]
    return Played(_tokens_per_second(steps), tuple(s.length for s in steps if s.length is not None))


def _tokens_per_second(steps: list[Step]) -> float:
    return sum(step.tokens for step in steps) / sum(step.seconds for step in steps)


def _of(played: dict[tuple[Cell, str, int], Played], cell: Cell, policy: str) -> list[Played]:
    return [run for (where, name, _), run in played.items() if (where, name) == (cell, policy)]


def _row(cell: Cell, policy: str, fixed: dict[int, list[Played]], found: list[Played]) -> Row:
    speeds = {k: fmean(run.tokens_per_second for run in runs) for k, runs in fixed.items()}
    best = max(speeds, key=speeds.__getitem__)
    good = {k for k, speed in speeds.items() if speed >= ABOUT_BEST * speeds[best]}
    speed = fmean(run.tokens_per_second for run in found)
    lengths = [length for run in found for length in run.lengths]
    return Row(
        cell,
        policy,
        best,
        speed / speeds[best],
        speed / speeds[0],
        {k: lengths.count(k) / len(lengths) for k in LENGTHS},
        tuple(steps_to_see(run.lengths, good) for run in found) if cell.changes else (),
    )
