"""The acceptance that a card tells, as a class of requests."""

import math
from collections.abc import Sequence

from smartspec.sim.world.acceptance import AcceptanceClass

LEAST_CONCENTRATION = 0.2


def acceptance_class_of(by_depth: Sequence[float], tested: Sequence[int]) -> AcceptanceClass:
    """by_depth: acceptance of a draft token, given that those before were accepted; tested: how
    many were.

    Where it rises with depth, requests differ: those that get deep accept more. The concentration
    of a Beta with mean m follows from the second depth, at which it is (m c + 1) / (c + 1). Where
    it falls, each token decays. ValueError where nothing was tested."""
    if not by_depth or not sum(tested):
        raise ValueError("the card tells no acceptance: give --acceptance")
    first = by_depth[0]
    ratios = [
        (b / a, n) for a, b, n in zip(by_depth, by_depth[1:], tested[1:], strict=False) if a > 0
    ]
    weight = sum(n for _, n in ratios)
    ratio = sum(r * n for r, n in ratios) / weight if weight else 1.0
    if ratio <= 1:
        return AcceptanceClass(first, decay=ratio)
    second = min(by_depth[1], 0.999)
    concentration = (1 - second) / (second - first) if second > first else math.inf
    return AcceptanceClass(first, request_concentration=max(concentration, LEAST_CONCENTRATION))
