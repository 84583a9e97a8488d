"""One draft length for the whole step, out of a given set: what an engine with captured graphs can run."""

import numpy as np

from smartspec.control.goodput.hysteresis import Hysteresis
from smartspec.control.planner.lengths import LengthPlan, objective, relative_gain
from smartspec.control.policy import Estimates, length_caps
from smartspec.control.records import BatchView


def plan_uniform(
    allowed_lengths: tuple[int, ...],
    hysteresis: Hysteresis,
    view: BatchView,
    drafter: np.ndarray,
    estimates: Estimates,
    draft_seconds: np.ndarray,
    target_seconds: np.ndarray,
    value_of_time: float | None = None,
) -> LengthPlan:
    """The allowed length (or 0) of largest predicted goodput. Every row is charged the whole length: a row whose draft
    is shorter is padded, so that the pass keeps its shape. hysteresis: what a change of the length is charged.
    drafter: int [R]; draft_seconds, target_seconds, value_of_time: see planner."""
    caps = length_caps(view, drafter, estimates.max_draft_tokens)
    fits = [k for k in sorted(allowed_lengths) if k * view.num_rows <= view.draft_token_budget]
    candidates = np.array([0, *fits])
    survival = np.concatenate([np.zeros((view.num_rows, 1)), estimates.survival_of(drafter)], axis=1)
    is_drafted = np.arange(survival.shape[1]) <= caps[:, None]
    accepted = view.weights @ np.cumsum(survival * is_drafted, axis=1)
    emitted = view.weights.sum() + accepted[candidates]
    depths = np.minimum(candidates, int(caps[estimates.has_passes(drafter)].max(initial=0)))
    seconds = target_seconds[candidates * view.num_rows] + draft_seconds[depths] + estimates.latency.host_seconds
    goodput = emitted / seconds
    values = objective(emitted, seconds + hysteresis.charges(candidates), value_of_time)
    best = int(values.argmax())
    return LengthPlan(
        lengths=np.minimum(caps, candidates[best]),
        depth=int(depths[best]),
        goodput=float(goodput[best]),
        seconds=float(seconds[best]),
        off_goodput=float(goodput[0]),
        off_seconds=float(seconds[0]),
        gain=relative_gain(float(values[best]), float(values[0]), float(emitted[0]), value_of_time),
    )
