"""Random numbers that are a function of (seed, position, purpose), so no policy can change what a
request draws.

A stateful generator would hand out different numbers as soon as the number of draft tokens, the
batch or the step changes. A counter-based one (Salmon et al., "Parallel Random Numbers: As Easy as
1, 2, 3", 2011) has no state to disturb. The rounds are the finaliser of splitmix64 (Steele et al.,
2014).

**No number decides in two steps.** A policy learns from every step, so a number that has decided in
one step must not decide in another: what is drawn would then be part of why it is drawn. With
numbers that are new in every step, the rule of verification is exact given all that is known before
the step, whatever the policy makes of that.

SAMPLE and ACCEPT decide about a position only when verification gets there, and then that position
becomes text. After the first rejection they decide nothing. So (seed, position) is enough, and a
point-mass draft changes no token of a seed. That holds for a draft, too, that was made in view of
SAMPLE's numbers of positions to come (see race): where drafts are point masses alone, a token
follows from its text and numbers, whatever was drafted or learned.

DRAFT decides about every token that is drafted, and nearly everything of a draft can be learned
from: its length, its confidence, the time it takes. After a rejection the same positions are
drafted again. So its key has the depth, too: with the position that says how long the text was, and
no two steps begin with as many tokens.

All this is about the numbers of one seed. Requests that share a seed share their numbers.
"""

import numpy as np

REST = 0  # draws the target's own token among those that have no number of their own, see race
DRAFT = 1  # draws a draft token from the draft model's distribution
ACCEPT = 2  # decides whether a sampled draft token is accepted
SAMPLE = 3  # draws the target's own token: plain, matched, recovered or bonus
# One position may need several: DRAFT adds its depth times this, SAMPLE the number of a token, from
# 1 on.
PURPOSES = 4

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(seeds: np.ndarray, positions: np.ndarray, purpose: int | np.ndarray) -> np.ndarray:
    """One float64 in [0, 1) per row, on a grid of 2**-53.

    seeds, positions: int64 [N]; position is the index of the token in the request's text. purpose:
    DRAFT, ACCEPT or SAMPLE, plus a multiple of PURPOSES, so that the draws made for one token are
    independent of each other.
    """
    return numbers_of(position_keys(seeds, positions), purpose)


def position_keys(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The part that all numbers of a position have in common: uint64, of the shape that int64 seeds
    and positions broadcast to."""
    with np.errstate(over="ignore"):
        state = _mix(np.asarray(seeds, dtype=np.int64).view(np.uint64) + _GOLDEN)
        return _mix((state ^ np.asarray(positions, dtype=np.int64).view(np.uint64)) + _GOLDEN)


def numbers_of(keys: np.ndarray, purpose: int | np.ndarray) -> np.ndarray:
    """uniform, from position_keys; the two broadcast."""
    with np.errstate(over="ignore"):
        state = _mix((keys ^ np.uint64(purpose)) + _GOLDEN)
    return (state >> np.uint64(11)) * 2.0**-53


def fold_seed(seed: int) -> int:
    """Any integer, however large or negative, as the int64 that uniform takes; int64 values stay
    what they are."""
    return (seed + 2**63) % 2**64 - 2**63


def _mix(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
