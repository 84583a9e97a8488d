"""The time of one model pass: a monotone function of its size, fitted to a profile.

    seconds = constant + curve(fed tokens) + per_context_token * context tokens + per_row * rows + per_attended_token
    * attended tokens + per_scored_token * scored tokens

curve is piecewise linear with non-negative slopes. It fits memory-bound plateaus, the bend to
compute-bound, and steps in between. Two terms are the time of attention: context tokens (the KV
that is read) and attended tokens (sum over fed tokens of the context each attends to). Scored
tokens are those whose logits are computed: newest and draft tokens, but not the inside of a prompt.
That makes prompt tokens cheaper (by a fifth in a small model with a large vocabulary). All
coefficients are non-negative: a negative one is a collinearity artefact that explodes outside the
profiled range (arXiv 2406.14066's prototype has a negative per-request term).
"""  # noqa: E501

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from smartspec.control.latency.nnls import solve_nnls
from smartspec.control.latency.settings import NOISE
from smartspec.control.log.json_fields import Fields

# Kernels switch blockings in steps; between the powers of two a measured oneDNN staircase has edges
# at 6, 12, 24, 48. A datacentre GPU's bend from memory- to compute-bound is at 300 to 400 tokens:
# without 384 times were 3 % out there.
KNOTS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 384, 512)
_SIZES = ("fed_tokens", "context_tokens", "rows", "num_scored")
_SCALARS = ("constant", "per_context_token", "per_row", "per_attended_token", "per_scored_token")


@dataclass(frozen=True)
class ProfileSample:
    """One measured pass."""

    fed_tokens: int  # spread evenly over the sequences
    context_tokens: int  # of all sequences together
    rows: int  # the number of sequences
    seconds: float
    scored_tokens: int | None = None  # fed tokens that got logits, None: all of them

    @property
    def num_scored(self) -> int:
        """The number of fed tokens that got logits."""
        return self.fed_tokens if self.scored_tokens is None else self.scored_tokens

    @property
    def attended_tokens(self) -> float:
        """The sum, over fed tokens, of the tokens that each attends to, for equally long
        sequences."""
        return _attended(self.fed_tokens, self.context_tokens, self.rows)


@dataclass(frozen=True)
class CostCurve:
    """The fitted time of a pass, in seconds."""

    knots: tuple[float, ...]  # fed tokens where the slope may change
    slopes: tuple[float, ...]  # seconds per token from each knot on
    constant: float
    per_context_token: float = 0.0
    per_row: float = 0.0
    per_attended_token: float = 0.0
    per_scored_token: float = 0.0

    @staticmethod
    def linear(constant: float, per_token: float) -> "CostCurve":
        """Return a guess where there is no profile: constant + per_token * fed tokens, in
        seconds."""
        return CostCurve(knots=(0.0,), slopes=(per_token,), constant=constant)

    @staticmethod
    def fit(samples: list[ProfileSample]) -> "CostCurve":
        """Return the curve of least squares of the relative error, all coefficients non-negative.
        ValueError on no or bad samples."""
        return CostCurve.fit_beside(samples, np.zeros((len(samples), 0)))[0]

    @staticmethod
    def fit_beside(
        samples: list[ProfileSample], others: np.ndarray
    ) -> tuple["CostCurve", np.ndarray]:
        """Return the same where n other causes also take part of the seconds, and the seconds of
        one unit of each: float [n], not negative either. others: float [samples, n], their sizes,
        the one that explains most first."""
        for sample in samples:
            if not (
                np.isfinite(sample.seconds)
                and sample.seconds > 0
                and sample.fed_tokens > 0
                and sample.rows > 0
            ):
                raise ValueError(
                    f"profile sample {sample} is unusable: seconds, fed_tokens and rows must be "
                    "positive"
                )
        if not samples:
            raise ValueError("the profile holds no samples: measure at least one pass")
        fed, context, rows, scored, seconds, attended = _columns(
            samples, *_SIZES, "seconds", "attended_tokens"
        )
        knots = _usable_knots(fed)
        widths = np.append(np.diff(knots), np.inf)
        pieces = np.clip(fed[:, None] - knots, 0.0, widths)
        design = np.column_stack(
            [np.ones_like(fed), context, rows, attended, scored, pieces, others]
        )
        design /= seconds[:, None]
        scale = np.maximum(design.max(axis=0), 1e-300)
        # Samples of one batch size do not show the cost of a row. Then the constant has to explain
        # their time, as a pass that reads the weights takes hardly less time for fewer rows. So all
        # other coefficients have a prior, except that of the first of others.
        ridge = NOISE * np.delete(np.eye(len(scale)), [0, -others.shape[1]], axis=0)
        values = np.append(np.ones_like(seconds), np.zeros(len(ridge)))
        coefficients = solve_nnls(np.concatenate([design / scale, ridge]), values) / scale
        scalars = dict(zip(_SCALARS, coefficients[: len(_SCALARS)].tolist(), strict=True))
        slopes, of_others = np.split(coefficients[len(_SCALARS) :], [len(knots)])
        return CostCurve(
            knots=tuple(knots.tolist()), slopes=tuple(slopes.tolist()), **scalars
        ), of_others

    def seconds(
        self,
        fed_tokens: np.ndarray | float,
        context_tokens: np.ndarray | float = 0.0,
        rows: np.ndarray | float = 1.0,
        attended_tokens: np.ndarray | float | None = None,
        scored_tokens: np.ndarray | float | None = None,
    ) -> np.ndarray:
        """Return the seconds of passes of these sizes (broadcast).

        Default of attended_tokens: that of rows equally long and equally fed. Default of
        scored_tokens: all fed tokens.
        """
        fed_tokens = np.asarray(fed_tokens, dtype=float)
        if attended_tokens is None:
            attended_tokens = _attended(fed_tokens, context_tokens, np.maximum(rows, 1))
        return (
            self.constant
            + self._curve(fed_tokens)
            + self.per_context_token * context_tokens
            + self.per_row * rows
            + self.per_attended_token * attended_tokens
            + self.per_scored_token * (fed_tokens if scored_tokens is None else scored_tokens)
        )

    def relative_errors(self, samples: list[ProfileSample]) -> np.ndarray:
        """Return predicted / measured - 1 of every sample: float [len(samples)]."""
        fed, context, rows, scored, seconds = _columns(samples, *_SIZES, "seconds")
        return self.seconds(fed, context, rows, scored_tokens=scored) / seconds - 1.0

    def to_dict(self) -> dict:
        """Return the JSON-able form, for the cache on disk and for people."""
        scalars = {name: getattr(self, name) for name in _SCALARS}
        return {"knots": list(self.knots), "slopes": list(self.slopes), **scalars}

    @staticmethod
    def from_dict(data: object) -> "CostCurve":
        """Return the inverse of to_dict. ValueError names the entry that is missing, not finite,
        negative, or out of order."""
        where = "cost curve is corrupt, profile again"
        if not isinstance(data, dict):
            raise ValueError(f"{where}: expected a mapping, found {type(data).__name__}")
        fields = Fields(data, where)
        knots, slopes = fields.numbers("knots", None), fields.numbers("slopes", None)
        scalars = {name: fields.number(name) for name in _SCALARS}
        for name, values in {"knots": knots, "slopes": slopes, **scalars}.items():
            if not np.all(np.asarray(values) >= 0):
                fields.fail(f"field {name!r} is {data[name]}, it must not be negative")
        if not len(knots) or len(knots) != len(slopes) or (np.diff(knots) <= 0).any():
            fields.fail("knots must increase, with one slope each")
        if not slopes.any() and not any(scalars.values()):
            fields.fail("all coefficients are zero")
        return CostCurve(tuple(knots.tolist()), tuple(slopes.tolist()), **scalars)

    @cached_property
    def _corners(self) -> tuple[np.ndarray, np.ndarray]:
        """The knots, and the curve's height at each."""
        return np.array(self.knots), np.concatenate(
            [[0.0], np.cumsum(np.diff(self.knots) * self.slopes[:-1])]
        )

    def _curve(self, fed_tokens: np.ndarray) -> np.ndarray:
        beyond = np.maximum(fed_tokens - self.knots[-1], 0.0) * self.slopes[-1]
        return np.interp(fed_tokens, *self._corners) + beyond


def _attended(fed_tokens, context_tokens, rows):
    """Return the attended tokens of sequences equally long and equally fed. The last fed token
    attends to all tokens, those before it to fewer."""
    return fed_tokens * np.maximum(context_tokens / rows - (fed_tokens / rows - 1) / 2, 0)


def _columns(samples: list[ProfileSample], *names: str) -> list[np.ndarray]:
    """Return these fields of all samples: float [samples] each."""
    return [np.array([getattr(each, name) for each in samples], dtype=float) for name in names]


def _usable_knots(fed: np.ndarray) -> np.ndarray:
    """Return the knots with measurements on both sides. Where nothing was measured, the neighbour's
    slope continues."""
    knots = [0.0 if fed.min() == fed.max() else float(KNOTS[0])]
    for knot in KNOTS[1:]:
        if np.any((fed > knots[-1]) & (fed <= knot)) and np.any(fed > knot):
            knots.append(float(knot))
    return np.array(knots)
