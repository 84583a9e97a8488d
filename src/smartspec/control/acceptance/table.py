"""Acceptance by drafter pool and draft position: the slow part of the estimate, shared by all
requests.

A pool is a drafter with a class of match lengths. Its log-odds at a position are shrunk in two
steps. The first prior is the estimate of all pools of the drafter, the second that of the pool at
neighbouring positions. So entries with few observations borrow from those with many:

    estimate = (sum of scores + strength * prior) / (sum of information + strength)

An observation with outcome y that was predicted as p adds, by a Newton step, information w = p (1 -
p) and score w * estimate + (y - p). Both fade. That is the extended Kalman (Laplace) update of
logistic regression under a Gaussian prior of variance 1 / strength. Observations that contradict an
entry by more than chance show a change of acceptance. Older ones then count less, as those of times
do (see cost_correction).
"""

from collections.abc import Sequence
from math import exp

import numpy as np

from smartspec.control.acceptance.logistic import (
    MAX_INFORMATION,
    MAX_LOG_ODDS,
    MIN_INFORMATION,
    log_odds_of,
    sigmoid,
)
from smartspec.control.acceptance.settings import (
    CHANGE_DEVIATIONS,
    ENTRY_STRENGTH,
    NEIGHBOUR_DECAY,
    PRIOR,
    SHARED_STRENGTH,
    WORKLOAD_MEMORY,
)
from smartspec.control.records import DrafterSpec


class Pools:
    """The P pools of all drafters, numbered through."""

    def __init__(self, drafters: tuple[DrafterSpec, ...]):
        sizes = [len(drafter.match_lengths) for drafter in drafters]
        # int [P], the drafter of each pool
        self.drafters = np.repeat(np.arange(len(drafters)), sizes)
        self._pool_of_match = [  # by drafter: int [longest least match length + 1]
            first
            + np.searchsorted(d.match_lengths[1:], np.arange(d.match_lengths[-1] + 1), side="right")
            for d, first in zip(drafters, np.cumsum([0, *sizes]), strict=False)
        ]
        self.names = [name for drafter in drafters for name in _pool_names(drafter)]

    def __len__(self) -> int:
        return len(self.names)

    def of(self, match_lengths: np.ndarray) -> np.ndarray:
        """Return the pool of a draft of each drafter: int [D, R], as match_lengths."""
        pairs = zip(self._pool_of_match, match_lengths, strict=True)
        pools = [pool_of_match.take(lengths, mode="clip") for pool_of_match, lengths in pairs]
        return np.array(pools, dtype=np.int64).reshape(match_lengths.shape)


def _pool_names(drafter: DrafterSpec) -> list[str]:
    if len(drafter.match_lengths) == 1:
        return [drafter.name]
    ends = [following - 1 for following in drafter.match_lengths[1:]]
    ranges = [
        f"{n}" if n == end else f"{n}-{end}"
        for n, end in zip(drafter.match_lengths, ends, strict=False)
    ]
    return [f"{drafter.name}, match {text}" for text in (*ranges, f"{drafter.match_lengths[-1]}+")]


class AcceptanceTable:
    """Log-odds of acceptance, float [K, pools], given that all draft tokens before were
    accepted."""

    def __init__(self, num_positions: int, pools: Pools):
        self._prior = float(log_odds_of(PRIOR))
        shape = (num_positions, len(pools))
        self._names = pools.names
        self._of_drafter = np.equal.outer(pools.drafters, pools.drafters).astype(float)
        self._columns = np.eye(len(pools))
        self.log_odds = np.full(shape, self._prior)
        self._state = np.zeros((2, *shape))  # information and score
        positions = np.arange(num_positions)
        self._nearness = NEIGHBOUR_DECAY ** np.abs(positions[:, None] - positions)

    def of(self, pools: np.ndarray) -> np.ndarray:
        """Return the log-odds of rows in these pools (int [D, R]): float [K, D, R]."""
        return self.log_odds.take(pools, axis=1)

    def learn(
        self, pools: np.ndarray, information: np.ndarray, residual: np.ndarray, num_steps: int
    ) -> np.ndarray:
        """Add the observations of rows in these pools, all float [K, D, R], of so many steps.
        Return the change of the entries: [K, pools]."""
        lines = np.concatenate([information, residual]).reshape(2 * len(self.log_odds), -1)
        by_pool = lines.dot(self._columns.take(pools.ravel(), axis=0))
        added = by_pool.reshape(2, *self.log_odds.shape)
        self._forget_before_change(*added)
        added[1] += added[0] * self.log_odds
        self._state = self._state * exp(-num_steps / WORKLOAD_MEMORY) + added
        before, self.log_odds = self.log_odds, self._estimate()
        return self.log_odds - before

    def _forget_before_change(self, information: np.ndarray, residual: np.ndarray) -> None:
        """Let older observations of an entry count less where new ones contradict it, by both
        deviations. Where new ones lie far from it by their own, a Newton step would be too long:
        residual becomes that of the step to their mean. information, residual: float [K, pools]."""
        p, limit = sigmoid(self.log_odds), sigmoid(MAX_LOG_ODDS)
        num = information / np.maximum(p * (1.0 - p), MIN_INFORMATION)
        mean = np.minimum(np.maximum((num * p + residual + 0.5) / (num + 1.0), 1.0 - limit), limit)
        # The larger of both variances: near 0 and 1 a few observations would contradict by chance.
        variance = num * np.maximum(p * (1.0 - p), mean * (1.0 - mean))
        surprise = residual**2 / np.maximum(CHANGE_DEVIATIONS**2 * variance, MIN_INFORMATION)
        if surprise.max() > 1.0:
            change = surprise / (1.0 + information / (self._state[0] + ENTRY_STRENGTH))
            # an entry of few observations is contradicted by chance
            change = np.maximum(change, 1.0)
            # What changed at one position has probably changed at later ones that were not tested
            # since.
            change = np.where(information > 0.0, change, np.maximum.accumulate(change, axis=0))
            self._state /= change**2
            residual[:] = np.where(
                surprise > 1.0, information * (log_odds_of(mean) - self.log_odds), residual
            )

    def expect(self, pool: int, acceptance: Sequence[float], tested: Sequence[int]) -> None:
        """Add the acceptance of a pool that was measured elsewhere, as observations. At a position
        these count at most half of the memory, because the traffic may be another."""
        least, most = float(sigmoid(-MAX_LOG_ODDS)), float(sigmoid(MAX_LOG_ODDS))
        for position, (chance, count) in enumerate(zip(acceptance, tested, strict=True)):
            if position < len(self.log_odds) and count:
                chance = min(max(chance, least), most)
                num = min(count, WORKLOAD_MEMORY / 2)
                information = num * max(chance * (1.0 - chance), MIN_INFORMATION)
                self._state[:, position, pool] += (
                    information,
                    information * float(log_odds_of(chance)),
                )
        self.log_odds = self._estimate()

    def table(self) -> dict:
        """Return conditional acceptance by pool and position, and the rough number of observations
        that it rests on."""
        acceptance = sigmoid(self.log_odds).round(4).T.tolist()
        observations = (self._state[0] / MAX_INFORMATION).round(1).T.tolist()
        return {
            name: {"acceptance": chances, "observations": counts}
            for name, chances, counts in zip(self._names, acceptance, observations, strict=True)
        }

    def _estimate(self) -> np.ndarray:
        near = self._nearness @ self._state
        information, score = near.dot(self._of_drafter)  # of all pools of the drafter
        estimate = (score + SHARED_STRENGTH * self._prior) / (information + SHARED_STRENGTH)
        information, score = near
        estimate = (score + SHARED_STRENGTH * estimate) / (information + SHARED_STRENGTH)
        information, score = self._state
        estimate = (score + ENTRY_STRENGTH * estimate) / (information + ENTRY_STRENGTH)
        return np.minimum(np.maximum(estimate, -MAX_LOG_ODDS), MAX_LOG_ODDS)
