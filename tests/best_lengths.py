"""The best number of draft tokens for every request of a step, from a sort and a scan of prefix
sums for each number of draft passes: what policies are measured against.

A slot (i, j) is "verify the j-th draft token of request i"; it is worth w_i * S_i(j) expected
tokens, S_i(j) being the probability that the first j draft tokens of request i are all accepted.
S_i falls with j, so the n most valuable slots of the batch always form a prefix of every draft. The
best plan with n tokens is then simply the first n slots of the sorted list. Goodput is evaluated
for every n and every depth, because it may have several peaks (fixed costs, padding staircases).
The objective is that of arXiv 2406.14066, section 5.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LengthPlan:
    lengths: np.ndarray  # int [R]
    goodput: float  # expected (weighted) tokens per second


@dataclass(frozen=True)
class StepTimes:
    """The times of the parts of a step, in seconds."""

    draft: np.ndarray  # float [K + 1], of 0..K draft passes, never decreasing
    # float [N + 1], of the target pass with 0..N draft tokens, positive and never decreasing. Plans
    # of more than N tokens are not considered.
    target: np.ndarray
    host: float = 0.0  # all the rest


def plan_lengths(
    survival: np.ndarray,
    caps: np.ndarray,
    weights: np.ndarray,
    needs_depth: np.ndarray,
    times: StepTimes,
) -> LengthPlan:
    """Return the plan that maximises sum_i w_i * E_i / (draft[depth] + target[sum k_i] + host) with
    E_i = 1 + sum_{j<=k_i} S_i(j).

    survival: float [R, K], never increasing along a row. caps: int [R], longest draft of each row.
    weights: float [R], >= 0. needs_depth: bool [R], True where a draft of length k takes k draft
    passes, False where it exists already.
    """
    num_rows, num_positions = survival.shape
    positions, base = np.arange(num_positions), float(weights.sum())
    gains = (weights[:, None] * survival).ravel()
    off_seconds = float(times.target[0] + times.draft[0] + times.host)
    best = LengthPlan(np.zeros(num_rows, dtype=np.int64), base / off_seconds)
    for depth in range(num_positions + 1) if needs_depth.any() else [0]:
        exists = (positions < caps[:, None]) & ((positions < depth) | ~needs_depth[:, None])
        slots = np.flatnonzero(exists)
        slots = slots[(-gains[slots]).argsort(kind="stable")][: len(times.target) - 1]
        seconds = times.target[1 : len(slots) + 1] + times.draft[depth] + times.host
        goodput = np.append(0.0, (base + gains[slots].cumsum()) / seconds)
        if goodput.max() > best.goodput:
            rows = slots[: goodput.argmax()] // num_positions
            best = LengthPlan(np.bincount(rows, minlength=num_rows), float(goodput.max()))
    return best
