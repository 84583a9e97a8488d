"""Tables of Dynamic SD from measured cells."""

import math
from dataclasses import replace
from itertools import pairwise

from lib.emulated_gpu.cells import Cell


def dynamic_sd_table(cell: Cell, found: dict[Cell, dict]) -> list[list[int]]:
    """[first, last, length] by batch size, as vLLM takes it: the fixed length with most tokens per
    second in the closed loops of that number of requests, else like the cell. Length 0 is a server
    with a drafter that never drafts. Between two measured numbers, the nearer one counts
    (geometrically). ValueError if none was measured."""
    best: dict[int, tuple[float, int]] = {}
    for other, figures in found.items():
        kind, _, level = other.load.partition(":")
        if kind == "closed" and other.policy.startswith("fixed:") and _alike(other, cell):
            speed = figures["tokens_per_second"], other.fixed_length
            best[int(level)] = max(best.get(int(level), speed), speed)
    if not best:
        raise ValueError(
            f"no closed loop of fixed lengths was measured for {cell.name}: name fixed:K and "
            "closed:N first"
        )
    levels = sorted(best)
    lasts = [math.isqrt(a * b) for a, b in pairwise(levels)] + [max(levels[-1], 256)]
    firsts = [1, *(last + 1 for last in lasts)]
    return [
        [first, last, best[level][1]]
        for first, last, level in zip(firsts, lasts, levels, strict=False)
    ]


def _alike(a: Cell, b: Cell) -> bool:
    return replace(a, load="", policy="") == replace(b, load="", policy="")
