"""The planner: the best number of draft tokens for every request of a step, from one sort and a scan of prefix sums.

A slot (i, j) is "verify the j-th draft token of request i"; it is worth w_i * S_i(j) expected tokens, S_i(j) being the
probability that the first j draft tokens of request i are all accepted. S_i falls with j, so the n most valuable slots
of the batch always form a prefix of every draft. The best plan with n tokens is then simply the first n slots of the
sorted list. Goodput is evaluated for every n and every draft depth, because it may have several peaks (fixed costs,
padding staircases). To stop at the first drop loses up to 6 %. The objective is that of arXiv 2406.14066, section 5;
the exact search per request is ours.

A mixed prefill-decode step needs another objective. Its time is mostly prefill, which has to be done whatever is
drafted. The ratio would make time cheap there, and draft tokens worth hardly anything. So time gets the shadow price
that it has in steps without prefill (value_of_time: tokens that one more second of step time is worth). Maximised is
then emitted - value_of_time * seconds, the parametric form of the same optimum (Dinkelbach, 1967).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

BOUND_ERROR = 1e-9  # of rounding, relative


@dataclass(frozen=True)
class LengthPlan:
    """The best lengths, and what they are predicted to bring.

    lengths: int [R]. depth: draft passes needed by the rows that need them. goodput: expected (weighted) tokens per
    second. seconds: predicted step time. off_goodput, off_seconds: the same with no draft token at all. gain: how much
    better than that the plan is, as a share of the tokens emitted without drafts. passes: int [R], those that the slots
    of each row take; None where it is not needed.
    """

    lengths: np.ndarray
    depth: int
    goodput: float
    seconds: float
    off_goodput: float
    off_seconds: float
    gain: float
    passes: np.ndarray | None = None

    @property
    def num_draft_tokens(self) -> int:
        return int(self.lengths.sum())


@dataclass(frozen=True)
class StepTimes:
    """What the parts of a step take, in seconds.

    draft: float [K + 1], of 0..K draft passes, never decreasing. target: float [N + 1], of the target pass with 0..N
    draft tokens, positive and never decreasing; plans of more than N tokens are not considered. host: all the rest.
    """

    draft: np.ndarray
    target: np.ndarray
    host: float = 0.0


class _Found(NamedTuple):
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
    """Maximise sum_i w_i * E_i / (draft[depth] + target[sum k_i] + host) with E_i = 1 + sum_{j<=k_i} S_i(j), and the
    seconds those of times. value_of_time: where given, the numerator minus value_of_time times the denominator is
    maximised instead.

    survival: float [R, K], never increasing along a row. caps: int [R], longest draft of each row. weights: float
    [R], >= 0. needs_depth: bool [R], True where a draft of length k takes k draft passes, False where it exists
    already. passes: int [R, K], draft passes that each slot takes where it is not that number, as in trees, whose slots
    are nodes; None: as needs_depth says.

    The result is the exact optimum. Ties go to fewer draft tokens. The order of equal slots only decides which row gets
    them.
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
    off = _Found(objective(base, off_seconds, value_of_time), 0, 0, base, off_seconds)
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
        passes=None if passes is None or first_depth is None else _most(rows, first_depth[chosen], len(caps)),
    )


def _best(
    off: _Found,
    gains: np.ndarray,
    first_depth: np.ndarray | None,
    times: StepTimes,
    value_of_time: float | None,
) -> _Found:
    """The best plan. off: that without drafts. gains: float [slots], largest first; first_depth: int [slots]."""
    best, base = off, off.emitted
    bounds, depths = np.full(1, np.inf), [0]
    if first_depth is not None:
        # No plan of a depth is better than all slots that exist there at the price of none: most depths need no look.
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
            best = _Found(float(values[n]), n + 1, depth, float(emitted[n]), float(seconds[n]))
    return best


def _slots_of(found: _Found, first_depth: np.ndarray) -> np.ndarray:
    """Places of the plan's slots among all, most valuable first: int [num_tokens]."""
    return np.flatnonzero(first_depth <= found.depth)[: found.num_tokens]


def _first_depth(
    slots: np.ndarray, rows: np.ndarray, num_positions: int, needs_depth: np.ndarray, passes: np.ndarray | None
) -> np.ndarray | None:
    """The shallowest draft in which each slot exists: int [slots]; None where all drafts exist already."""
    if passes is not None:
        return passes.ravel()[slots]
    return np.where(needs_depth[rows], slots - rows * num_positions + 1, 0) if needs_depth.any() else None


def _most(rows: np.ndarray, values: np.ndarray, num_rows: int) -> np.ndarray:
    """The largest value of each row, 0 where it has none: int [num_rows]."""
    most = np.zeros(num_rows, dtype=np.int64)
    np.maximum.at(most, rows, values)
    return most


def objective(emitted: np.ndarray | float, seconds: np.ndarray | float, value_of_time: float | None):
    """What is maximised: goodput, or tokens less the tokens the time is worth."""
    return emitted / seconds if value_of_time is None else emitted - value_of_time * seconds


def relative_gain(best: float, off: float, base: float, value_of_time: float | None) -> float:
    """How much better the best objective is than no drafts; 0 without decoding requests. base: sum of weights."""
    if base == 0:
        return 0.0
    return best / off - 1.0 if value_of_time is None else (best - off) / base
