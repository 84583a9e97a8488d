"""One draft length for the whole step, out of a given set, for engines with captured graphs.

An engine with captured graphs may take longer for the step after a change of the length: with a table by batch size,
232 tokens per second fell to 24 to 157 where it crosses its threshold (vLLM issue 49548).
"""

import numpy as np

from smartspec.control.goodput.settings import HysteresisSettings
from smartspec.control.planner.lengths import LengthPlan, objective, power_mean, relative_gain, slot_gains
from smartspec.control.policy import Estimates, length_caps
from smartspec.control.records import BatchView


class Hysteresis:
    """The lengths that there are, and the cost of a change of the length, which is learned. A length that differs from
    the last one is charged this cost, divided by the number of steps that a length has lasted lately. So where lengths
    change often, a change must gain more."""

    def __init__(self, settings: HysteresisSettings, allowed_lengths: tuple[int, ...]):
        self.allowed_lengths = allowed_lengths
        self._settings = settings
        self._last: int | None = None
        self._num_steps = 0  # since the last change
        self._seconds = 0.0
        self._lasting = settings.first_lasting

    def charges(self, lengths: np.ndarray) -> np.ndarray:
        """Seconds that a step with each of these lengths (int [n]) is charged: float [n]."""
        if self._last is None:
            return np.zeros(len(lengths))
        return np.where(lengths == self._last, 0.0, max(self._seconds, 0.0) / self._lasting)

    def observe(self, length: int, excess_seconds: float | None) -> None:
        """A step is over. excess_seconds: measured minus predicted seconds, None where the difference has other causes
        (prefill)."""
        if self._last is not None and length != self._last:
            rate = self._settings.rate
            if excess_seconds is not None:
                self._seconds += rate * (excess_seconds - self._seconds)
            self._lasting += rate * (self._num_steps - self._lasting)
            self._num_steps = 0
        self._last = length
        self._num_steps += 1


def plan_uniform(
    hysteresis: Hysteresis,
    fairness: float,
    view: BatchView,
    estimates: Estimates,
    target_seconds: np.ndarray,
    value_of_time: float | None,
    drafter: np.ndarray,
    draft_seconds: np.ndarray,
) -> LengthPlan:
    """The allowed length (or 0) of largest predicted goodput. Every row is charged the whole length: a row whose draft
    is shorter is padded, so that the pass keeps its shape.
    drafter: int [R]; fairness, target_seconds, value_of_time: see planner; draft_seconds: float [D, K + 1], by
    drafter."""
    caps = length_caps(view, drafter, estimates.max_draft_tokens)
    fits = [k for k in sorted(hysteresis.allowed_lengths) if k * view.num_rows <= view.draft_token_budget]
    candidates = np.array([0, *fits])
    emitted = _emitted(estimates.survival_of(drafter), caps, view.weights, fairness)[candidates]
    depths = np.minimum(candidates, int(caps[estimates.has_passes(drafter)].max(initial=0)))
    seconds = target_seconds[candidates * view.num_rows] + draft_seconds.sum(axis=0)[depths]
    seconds += estimates.latency.host_seconds
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
        gain=relative_gain(float(values[best]), float(values[0]), float(view.weights.sum()), value_of_time),
    )


def _emitted(survival: np.ndarray, caps: np.ndarray, weights: np.ndarray, fairness: float) -> np.ndarray:
    """What is maximised per second, by the length of all, float [K + 1]. survival: float [R, K]; caps: int [R]."""
    is_drafted = np.arange(survival.shape[1]) < caps[:, None]
    gained = slot_gains(survival * is_drafted, weights, fairness).sum(axis=0).cumsum()
    return power_mean(np.append(0.0, gained), float(weights.sum()), fairness)
