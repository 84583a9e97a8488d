"""Random numbers that are a function of (seed, position, purpose), so no policy can change what a request draws.

A stateful generator would hand out different numbers as soon as the number of draft tokens, the batch or the step
changes. A counter-based one (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011) has no state to
disturb. The rounds are the finaliser of splitmix64 (Steele et al., 2014).
"""

import numpy as np

DRAFT = 1  # draws a draft token from the draft model's distribution
ACCEPT = 2  # decides whether a sampled draft token is accepted
SAMPLE = 3  # draws the target's own token: plain, matched, recovered or bonus
PURPOSES = 4  # what is done several times for one token adds a multiple of this, such as ACCEPT for each sibling

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(seeds: np.ndarray, positions: np.ndarray, purpose: int) -> np.ndarray:
    """One float64 in [0, 1) per row, on a grid of 2**-53.

    seeds, positions: int64 [N]; position is the index of the token in the request's text. purpose: DRAFT, ACCEPT or
    SAMPLE, plus a multiple of PURPOSES, so that the draws made for one token are independent of each other.
    """
    with np.errstate(over="ignore"):
        state = _mix(np.asarray(seeds, dtype=np.int64).view(np.uint64) + _GOLDEN)
        state = _mix((state ^ np.asarray(positions, dtype=np.int64).view(np.uint64)) + _GOLDEN)
        state = _mix((state ^ np.uint64(purpose)) + _GOLDEN)
    return (state >> np.uint64(11)) * 2.0**-53


def fold_seed(seed: int) -> int:
    """Any integer, however large or negative, as the int64 that uniform takes; int64 values stay what they are."""
    return (seed + 2**63) % 2**64 - 2**63


def _mix(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
