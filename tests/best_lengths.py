"""The planner: the best number of draft tokens for every request of a step, from one sort and a
scan of prefix sums.

A slot (i, j) is "verify the j-th draft token of request i"; it is worth w_i * S_i(j) expected
tokens, S_i(j) being the probability that the first j draft tokens of request i are all accepted.
S_i falls with j, so the n most valuable slots of the batch always form a prefix of every draft. The
best plan with n tokens is then simply the first n slots of the sorted list. Goodput is evaluated
for every n and every draft depth, because it may have several peaks (fixed costs, padding
staircases). To stop at the first drop loses up to 6 %. The objective is that of arXiv 2406.14066,
section 5; the exact search per request is ours.

A mixed prefill-decode step needs another objective. Its time is mostly prefill, which has to be
done whatever is drafted. The ratio would make time cheap there, and draft tokens worth hardly
anything. So time gets the shadow price that it has in steps without prefill (value_of_time: tokens
that one more second of step time is worth). Maximised is then emitted - value_of_time * seconds,
the parametric form of the same optimum (Dinkelbach, 1967).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

BOUND_ERROR = 1e-9  # of rounding, relative


@dataclass(frozen=True)
class LengthPlan:
    """The best lengths, and their predicted results."""

    lengths: np.ndarray  # int [R]
    depth: int  # draft passes, of the rows that need them
    goodput: float  # expected (weighted) tokens per second
    seconds: float  # predicted step time
    off_goodput: float  # goodput without any draft token
    off_seconds: float  # seconds without any draft token
    gain: float  # of the plan over no drafts, as a share of the tokens emitted without drafts
    # int [R], that the slots of each row take; None where it is not needed
    passes: np.ndarray | None = None

    @property
    def num_draft_tokens(self) -> int:
        """The number of draft tokens of all rows."""
        return int(self.lengths.sum())


@dataclass(frozen=True)
class StepTimes:
    """The times of the parts of a step, in seconds."""

    draft: np.ndarray  # float [K + 1], of 0..K draft passes, never decreasing
    # float [N + 1], of the target pass with 0..N draft tokens, positive and never decreasing. Plans
    # of more than N tokens are not considered.
    target: np.ndarray
    host: float = 0.0  # all the rest


class _Candidate(NamedTuple):
    """A plan of the num_tokens most valuable slots that exist after depth draft passes."""

    value: float  # of the objective
    num_tokens: int
    depth: int
    emitted: float
    seconds: float


def plan_lengths(
    survival: np.ndarray,
    caps: np.ndarray,
    weights: np.ndarray,
    needs_depth: np.ndarray,
    times: StepTimes,
    value_of_time: float | None = None,
    passes: np.ndarray | None = None,
) -> LengthPlan:
    """Return the plan that maximises sum_i w_i * E_i / (draft[depth] + target[sum k_i] + host) with
    E_i = 1 + sum_{j<=k_i} S_i(j), and the seconds of times. value_of_time: where given, the
    numerator minus value_of_time times the denominator is maximised instead.

    survival: float [R, K], never increasing along a row. caps: int [R], longest draft of each row.
    weights: float [R], >= 0. needs_depth: bool [R], True where a draft of length k takes k draft
    passes, False where it exists already. passes: int [R, K], draft passes that each slot takes,
    for trees, whose slots are nodes; None for chains, where needs_depth gives that number.

    The result is the exact optimum. Ties go to fewer draft tokens. The order of equal slots only
    decides which row gets them.
    """
    num_positions = survival.shape[1]
    slots = np.flatnonzero(np.arange(num_positions) < caps[:, None])
    base = float(weights.sum())
    gains = (weights[:, None] * survival).ravel()[slots]
    order = (-gains).argsort(kind="stable")
    slots, gains = slots[order], gains[order]
    rows = slots // num_positions
    first_depth = _first_depth(slots, rows, num_positions, needs_depth, passes)
    off_seconds = float(times.target[0] + times.draft[0] + times.host)
    off = _Candidate(objective(base, off_seconds, value_of_time), 0, 0, base, off_seconds)
    best = _best(off, gains, first_depth, times, value_of_time)
    chosen = slice(best.num_tokens) if first_depth is None else _slots_of(best, first_depth)
    rows = rows[chosen]
    return LengthPlan(
        lengths=np.bincount(rows, minlength=len(caps)),
        depth=best.depth,
        goodput=best.emitted / best.seconds,
        seconds=best.seconds,
        off_goodput=base / off_seconds,
        off_seconds=off_seconds,
        gain=relative_gain(best.value, off.value, base, value_of_time),
        passes=None
        if passes is None or first_depth is None
        else _most(rows, first_depth[chosen], len(caps)),
    )


def _best(
    off: _Candidate,
    gains: np.ndarray,
    first_depth: np.ndarray | None,
    times: StepTimes,
    value_of_time: float | None,
) -> _Candidate:
    """Return the best plan. off: the plan without drafts. gains: float [slots], largest first.
    first_depth: int [slots]."""
    best, base = off, off.emitted
    bounds, depths = np.full(1, np.inf), [0]
    if first_depth is not None:
        # No plan of a depth is better than one of all slots of this depth in the time of no draft
        # token. With this bound most depths are skipped.
        all_emitted = base + np.bincount(first_depth, gains).cumsum()
        least_seconds = times.draft[: len(all_emitted)] + (times.target[0] + times.host)
        bounds = objective(all_emitted, least_seconds, value_of_time)
        depths = (-bounds).argsort(kind="stable").tolist()
    for depth in depths:
        if bounds[depth] < best.value - BOUND_ERROR * abs(best.value):
            break
        existing = gains if first_depth is None else gains[first_depth <= depth]
        emitted = base + existing[: len(times.target) - 1].cumsum()
        if not len(emitted):
            continue
        seconds = times.target[1 : len(emitted) + 1] + (times.draft[depth] + times.host)
        values = objective(emitted, seconds, value_of_time)
        n = int(values.argmax())
        if (values[n], -n - 1, -depth) > (best.value, -best.num_tokens, -best.depth):
            best = _Candidate(float(values[n]), n + 1, depth, float(emitted[n]), float(seconds[n]))
    return best


def _slots_of(plan: _Candidate, first_depth: np.ndarray) -> np.ndarray:
    """Return the places of the plan's slots among all, most valuable first: int [num_tokens]."""
    return np.flatnonzero(first_depth <= plan.depth)[: plan.num_tokens]


def _first_depth(
    slots: np.ndarray,
    rows: np.ndarray,
    num_positions: int,
    needs_depth: np.ndarray,
    passes: np.ndarray | None,
) -> np.ndarray | None:
    """Return the depth of the shallowest draft in which each slot exists: int [slots]; None where
    all drafts exist already."""
    if passes is not None:
        return passes.ravel()[slots]
    return (
        np.where(needs_depth[rows], slots - rows * num_positions + 1, 0)
        if needs_depth.any()
        else None
    )


def _most(rows: np.ndarray, values: np.ndarray, num_rows: int) -> np.ndarray:
    """Return the largest value of each row, 0 where it has none: int [num_rows]."""
    most = np.zeros(num_rows, dtype=np.int64)
    np.maximum.at(most, rows, values)
    return most


def objective(
    emitted: np.ndarray | float, seconds: np.ndarray | float, value_of_time: float | None
):
    """Return the value that is maximised: goodput, or tokens less the tokens that the time is
    worth."""
    return emitted / seconds if value_of_time is None else emitted - value_of_time * seconds


def relative_gain(best: float, off: float, base: float, value_of_time: float | None) -> float:
    """Return the gain of the best objective over no drafts, see LengthPlan; 0 without decoding
    requests. base: the sum of weights."""
    if base == 0:
        return 0.0
    return best / off - 1.0 if value_of_time is None else (best - off) / base
