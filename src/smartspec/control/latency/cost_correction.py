"""A profiled cost curve that every measured pass corrects: recursive least squares over its
coefficients.

The seconds of a pass are linear in coefficients theta, with factors x that its size gives. The
coefficients are those of the profiled curve (one slope for every piece) and two deviations of
passes with prefill: one per pass, one per token. A Kalman filter tracks them: P <- P - P x x' P /
S, theta <- theta + P x (y - x' theta) / S, with Huber's bound on outliers. It starts from the
profile. Its prior is the way in which profiles go wrong:

* all coefficients together (another clock rate, a busy machine);
* each by itself: the rest. A coefficient that is zero in the profile may turn out not to be zero.

Observations fade: in every step the covariance moves a little back towards that prior. So it stays
bounded also for coefficients that no step tests. Coefficients that vary together in the prior move
faster than the ratios between them. A single factor on the profile could explain the time of any
one size, but not the time that a draft token adds. The covariance shows which of these the steps so
far have determined.
"""

from bisect import bisect_right
from typing import Any, NamedTuple

import numpy as np

from smartspec.control.latency.cost_curve import KNOTS, CostCurve
from smartspec.control.latency.settings import (
    ATTENTION_TOKENS,
    CHANGE_RUN,
    COMMON_STD,
    FIRST_USE_NOISE,
    FORGETTING,
    MAX_DEVIATIONS,
    NOISE,
    SINGLE_STD,
)

NAMES = (
    "constant",
    "per_row",
    "per_context_token",
    "per_attended_token",
    "per_scored_token",
    "per_pass_with_prefill",
    "per_prefill_token",
)
FIXED, ROWS, CONTEXT, ATTENDED, SCORED, PREFILL_PASS, PREFILL_TOKEN = range(len(NAMES))
SLOPES = slice(len(NAMES), None)
# tokens beyond the last knot up to which its slope holds: more than any pass is fed
BEYOND = 2.0**20
MOST_DRIFT = 20.0  # of the present times of passes from those of the profile, up and down


class PassSize(NamedTuple):
    """The sizes of passes, see cost_curve; all fields broadcast."""

    fed_tokens: np.ndarray | float
    context_tokens: np.ndarray | float
    rows: np.ndarray | float
    attended_tokens: np.ndarray | float
    scored_tokens: np.ndarray | float
    prefill_tokens: float = 0.0  # those of fed_tokens that are prefill


class CostCorrection:
    """The time of passes: the profile, corrected by measured passes. It never decreases in any size
    but prefill's."""

    def __init__(self, profile: CostCurve):
        self.profile = profile
        self._knots = np.array(
            sorted({*profile.knots, *(k for k in map(float, KNOTS) if k > profile.knots[0])})
        )
        slopes = np.array(profile.slopes)[
            np.searchsorted(profile.knots, self._knots, side="right") - 1
        ]
        self._start = np.concatenate([[getattr(profile, name, 0.0) for name in NAMES], slopes])
        self._prior = _prior_covariance(self._start, profile)
        # The filter's estimate. It may be negative; otherwise noise could only push it up.
        self._estimate = self._start.copy()
        # the possible coefficients that are closest to it; predictions use these
        self._theta = self._start.copy()
        self._covariance = self._prior.copy()
        # The present time of passes over that of the profile, for passes like the last ones: the
        # prior is relative to it.
        self.drift = 1.0
        self._run = 0  # large innovations of one sign in a row, negative for negative ones
        self._lowest = np.zeros(len(self._theta))
        self._lowest[[PREFILL_PASS, PREFILL_TOKEN]] = -np.inf
        self._floor = max(float(profile.seconds(1.0)) / MOST_DRIFT, 1e-9)
        self._curve_knots = np.append(self._knots, self._knots[-1] + BEYOND)
        self._pieces = np.diff(self._curve_knots)
        # of the token curve at each of these knots
        self._heights = np.zeros(len(self._curve_knots))
        self._update_curve()

    def seconds(self, size: PassSize) -> np.ndarray:
        """Return the corrected seconds of passes of these sizes, positive."""
        curve = np.interp(size.fed_tokens, self._curve_knots, self._heights)
        return np.maximum(self._linear_part(size) + curve, self._floor)

    def seconds_of_one(self, size: PassSize) -> float:
        """Return the same of one pass, whose sizes are numbers, without arrays."""
        return max(self._linear_part(size) + self._curve_at(size.fed_tokens), self._floor)

    def _linear_part(self, size: PassSize) -> Any:
        """Return the seconds of passes of these sizes without the curve over fed tokens."""
        fixed, row, context, attended, scored, prefill_pass, prefill_token = self._scalars
        of_prefill = (size.prefill_tokens > 0) * prefill_pass + prefill_token * size.prefill_tokens
        of_tokens = (
            context * size.context_tokens
            + attended * size.attended_tokens
            + scored * size.scored_tokens
        )
        return fixed + row * size.rows + of_prefill + of_tokens

    def _curve_at(self, fed_tokens: Any) -> float:
        """Return the seconds of the curve over fed tokens, computed as np.interp does."""
        knots, heights = self._curve
        piece = bisect_right(knots, fed_tokens) - 1
        if piece < 0:
            return heights[0]
        if piece >= len(knots) - 1:
            return heights[-1]
        slope = (heights[piece + 1] - heights[piece]) / (knots[piece + 1] - knots[piece])
        return slope * (fed_tokens - knots[piece]) + heights[piece]

    def features(self, size: PassSize) -> np.ndarray:
        """Return the factor of each coefficient: float [N, num_coefficients]."""
        fed = np.atleast_1d(np.asarray(size.fed_tokens, dtype=float))
        features = np.empty((len(fed), len(self._theta)))
        features[:, FIXED] = 1.0
        features[:, ROWS] = size.rows
        features[:, CONTEXT] = size.context_tokens
        features[:, ATTENDED] = size.attended_tokens
        features[:, SCORED] = size.scored_tokens
        features[:, PREFILL_PASS] = size.prefill_tokens > 0
        features[:, PREFILL_TOKEN] = size.prefill_tokens
        features[:, SLOPES] = np.minimum(np.maximum(fed[:, None] - self._knots, 0.0), self._pieces)
        return features

    def observe(self, features: np.ndarray, seconds: np.ndarray, is_first_use: np.ndarray) -> None:
        """Learn from measured passes, one after the other. features: float [N, num_coefficients].
        seconds: float [N]. is_first_use: bool [N], True for a pass that was the first of its
        size."""
        prior = self.drift**2 * self._prior
        for of_pass, measured, is_first in zip(
            features, seconds.tolist(), is_first_use.tolist(), strict=True
        ):
            self._observe_one(of_pass, measured, is_first, prior)
        self._theta = self._closest_possible()
        profiled = max(float(features[-1].dot(self._start)), self._floor)
        drift = float(features[-1].dot(self._theta)) / profiled
        self.drift = min(max(drift, 1 / MOST_DRIFT), MOST_DRIFT)
        self._update_curve()

    def _observe_one(
        self, features: np.ndarray, seconds: float, is_first_use: bool, prior: np.ndarray
    ) -> None:
        """Move estimate and covariance by one measured pass. prior: the covariance without
        observations."""
        self._covariance += FORGETTING * (prior - self._covariance)
        # may be negative; cut at 0, it would hardly be corrected
        estimated = float(features.dot(self._estimate))
        predicted, innovation = max(estimated, self._floor), seconds - estimated
        noise = NOISE * predicted  # relative
        if is_first_use:
            noise *= FIRST_USE_NOISE
        gain, variance = self._gain(features)
        if self._has_changed(innovation, variance + noise**2):
            change = abs(innovation) / predicted
            self._covariance += self._theta[:, None] * (change**2 * self._theta)
            gain, variance = self._gain(features)
        variance += noise**2
        variance *= max(abs(innovation) / (MAX_DEVIATIONS * variance**0.5), 1.0)
        self._estimate = self._estimate + gain * (innovation / variance)
        self._covariance -= gain[:, None] * (gain / variance)

    def state(self) -> dict:
        """Return the corrected coefficients in seconds, JSON-able."""
        scalars = dict(zip(NAMES, self._theta[: len(NAMES)].tolist(), strict=True))
        return {**scalars, "knots": self._knots.tolist(), "slopes": self._theta[SLOPES].tolist()}

    def _gain(self, features: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the Kalman gain before division by the variance of the innovation, and that
        variance without noise."""
        gain = self._covariance.dot(features)
        variance = float(features.dot(gain))
        # rounding, after steps of very different sizes: begin again as uncertain as at the start
        if variance < 0.0:
            self._covariance = self.drift**2 * self._prior
            gain = self._covariance.dot(features)
            variance = float(features.dot(gain))
        return gain, variance

    def _has_changed(self, innovation: float, variance: float) -> bool:
        """True if this innovation is the last of change_run large ones of one sign (change
        detection)."""
        if abs(innovation) <= MAX_DEVIATIONS * variance**0.5:
            self._run = 0
            return False
        sign = 1 if innovation > 0 else -1
        self._run = self._run + sign if self._run * sign > 0 else sign
        return abs(self._run) >= CHANGE_RUN

    def _closest_possible(self) -> np.ndarray:
        """Return the estimate given that no coefficient but the prefill's deviations is negative.
        Negative ones become zero. The others become what the covariance then expects, so that the
        measurements are still explained."""
        theta, held = self._estimate, np.zeros(len(self._lowest), dtype=bool)
        for _ in theta:
            negative = theta < self._lowest
            if not any(negative.tolist()):
                return theta
            held |= negative
            columns = self._covariance[:, held]
            block = columns[held]
            # keeps it invertible where coefficients are nearly the same
            block.flat[:: len(block) + 1] *= 1.0 + 1e-9
            theta = self._estimate - columns @ np.linalg.solve(block, self._estimate[held])
            theta[held] = 0.0
        return np.maximum(theta, self._lowest)

    def _update_curve(self) -> None:
        """Prepare the coefficients for predictions: scalars as floats, and the token curve at its
        knots."""
        self._scalars = self._theta[: len(NAMES)].tolist()
        (self._pieces * self._theta[SLOPES]).cumsum(out=self._heights[1:])
        self._curve = self._curve_knots.tolist(), self._heights.tolist()


def _prior_covariance(theta: np.ndarray, profile: CostCurve) -> np.ndarray:
    """Return the covariance of the profile's errors: float [num_coefficients, num_coefficients]."""
    token = _mean_slope(profile)
    pass_seconds = profile.constant + token
    single = SINGLE_STD * theta
    single[FIXED] = SINGLE_STD * pass_seconds
    single[ROWS] = max(single[ROWS], SINGLE_STD * token)
    single[CONTEXT] = single[CONTEXT] or pass_seconds / ATTENTION_TOKENS
    single[ATTENDED] = single[ATTENDED] or token / ATTENTION_TOKENS
    single[PREFILL_PASS], single[PREFILL_TOKEN] = SINGLE_STD * pass_seconds, SINGLE_STD * token
    single[SLOPES] = SINGLE_STD * np.maximum(theta[SLOPES], 0.5 * token)
    common = COMMON_STD * theta
    return np.diag(single**2) + np.outer(common, common)


def _mean_slope(profile: CostCurve) -> float:
    """Return the seconds per token over the profiled sizes; a low guess where they showed no
    cost."""
    last = max(profile.knots[-1], 64.0)
    return max(
        float(profile.seconds(last) - profile.seconds(1.0)) / last, profile.constant / 1024, 1e-12
    )
