"""The target's own token by a race, and what a drafter can foresee of who wins it.

Every token runs for an exponential time of rate p, its probability: it arrives at E / p, where E is
the random number of (seed, position, token). The first to arrive has token x with probability p(x).
This is the Gumbel-max trick, written with times. Tokens that are less likely than NAMED run
together as one, whose token is drawn after it has won.

E does not depend on p. So a drafter whose distribution is near the target's mostly sees the same
token win. Drafter and target share random numbers, as in drafter-invariant speculative decoding
(Daliri, Musco and Suresh, arXiv 2408.07978). Drafts stay point masses: the target's own token
follows from seed, position and text alone, whatever was drafted, and a draft token is accepted
where it is that token. So no output changes, not even for a seed. Ours are trees, ranked by the
chance that a token wins given E (foreseen_chances).

Where another rule, that for drawn drafts, accepts some tokens of a request (see verification), no
drafter may look. Which rule decides a token would then depend on the numbers that decide it.
"""

import numpy as np
import torch

from smartspec.engine.sampling.inverse_cdf import mass_of, sample_from_probs
from smartspec.engine.sampling.randomness import (
    PURPOSES,
    REST,
    SAMPLE,
    numbers_of,
    position_keys,
    uniform,
)

NAMED = 2.0**-6
ROUNDING = 1e-3  # more than rows of float32 that sum to 1 are wrong by
# How many times sooner than E = 1 those that a drafter does not list arrive, by its chances: its
# lists are not sure.
UNLISTED = 4.0


def run_race(probs: torch.Tensor, seeds: np.ndarray, positions: np.ndarray) -> torch.Tensor:
    """The token that wins in each row, int64 [N]; -1 in rows of NaN.

    probs: float32 [N, V], rows sum to 1. seeds, positions: int64 [N], as in randomness.uniform.
    """
    places = _at_least(probs, NAMED)
    rows, token_ids = divmod(places, probs.shape[1])
    named_probs = (
        probs.reshape(-1)[torch.from_numpy(places).to(probs.device)].double().cpu().numpy()
    )
    arrivals = run_times(position_keys(seeds[rows], positions[rows]), token_ids) / named_probs
    first = np.full(len(probs), np.inf)
    np.minimum.at(first, rows, arrivals)
    is_first = arrivals == first[rows]
    winners = np.full(len(probs), -1)
    winners[rows[is_first]] = token_ids[is_first]

    time_of_others = -np.log1p(-uniform(seeds, positions, SAMPLE))
    # mass of the others
    most = 1.0 + ROUNDING - np.bincount(rows, named_probs, minlength=len(probs))
    # few: no row is summed in vain
    for row in np.flatnonzero(time_of_others < first * most).tolist():
        others = probs[row : row + 1].clone()
        others[0, torch.from_numpy(token_ids[rows == row]).to(probs.device)] = 0.0
        if time_of_others[row] < first[row] * mass_of(others).item():
            u = uniform(seeds[row : row + 1], positions[row : row + 1], REST)
            winners[row] = sample_from_probs(others, u).item()
    return torch.from_numpy(winners).to(probs.device)


def _at_least(probs: torch.Tensor, least: float) -> np.ndarray:
    """Places in the flattened rows of what is as large as that: int64."""
    if probs.device.type == "cpu":  # numpy looks at them ten times as fast
        return np.flatnonzero(probs.numpy() >= least)
    return (probs >= least).flatten().nonzero().squeeze(1).cpu().numpy()


def run_times(keys: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
    """E of each token, int64, at the position of each key (see position_keys): float64, exponential
    of rate 1."""
    return -np.log1p(-numbers_of(keys, SAMPLE + PURPOSES * (1 + token_ids)))


def foreseen_chances(
    chances: np.ndarray, token_ids: np.ndarray, keys: np.ndarray, temperatures: np.ndarray
) -> np.ndarray:
    """The chance that each token is the target's own, given its E: float [n, width], in place of a
    drafter's chances.

    chances, token_ids: [n, width], at temperature 1. keys: uint64 [n], of each row's position;
    temperatures: float [n]. At a temperature T a token that a drafter gives the chance c is worth c
    ** (1 / T) / E. The target's chances are not quite those, so the T-th power of that is taken,
    which was measured to be as well calibrated as the drafter's chances alone. At T = 0 it is
    these.
    """
    power = temperatures[:, None]
    times = np.maximum(run_times(keys[:, None], token_ids), np.finfo(float).tiny)
    worth = chances / times**power
    rest = np.maximum(1.0 - chances.sum(axis=1, keepdims=True), 0.0) * UNLISTED**power
    return worth / (worth.sum(axis=1, keepdims=True) + rest)
