"""How long a step takes: profiled cost curves, corrected by every measured step.

The correction is multiplicative and works on the logarithm of measured / predicted: a global factor for the target
pass (another clock rate, a busy machine) plus a slower residual per size of the pass, kept at nodes log2(fed tokens)
= 0, 1, 2, ... and interpolated between them, separately with and without prefill. Surprises are clipped (a garbage
collection is an outlier, a throttled clock insists) and residuals are pulled towards zero, so that noise at one size
draws no cliff into the curve.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from smartspec.control.cost_curve import CostCurve, ProfileSample
from smartspec.control.records import BatchView, DraftPlan, StepSeconds

__all__ = ["CostCurve", "LatencyModel", "PredictedSeconds", "ProfileSample"]

MAX_SURPRISE = 0.3  # in log seconds: one outlier moves the global factor by at most 1.5 %
GLOBAL_RATE = 0.05  # about the last 20 steps
RESIDUAL_RATE = 0.02
RESIDUAL_PULL = 0.002  # a lasting residual settles at RATE / (RATE + PULL), about 0.9 of its size
NUM_NODES = 14  # passes of up to 8192 tokens have a node of their own
NUM_ERRORS = 256
FORMAT = 2


@dataclass(frozen=True)
class PredictedSeconds:
    """Predicted time of the parts of one step, and of the whole step had it carried no draft token, in seconds."""

    draft: float
    target: float
    host: float
    off: float

    @property
    def total(self) -> float:
        return self.draft + self.target + self.host


class LatencyModel:
    """Predicts the parts of a step and learns from what they took.

    target, draft: cost of one pass of the target and of the draft model (None without one). A guess will do where
    there is no profile: LatencyModel(CostCurve.linear(0.04, 0.002)).
    """

    def __init__(self, target: CostCurve, draft: CostCurve | None = None):
        self.target = target
        self.draft = draft
        self._target_log_factor = 0.0
        self._draft_log_factor = 0.0
        self._residuals = np.zeros((2, NUM_NODES))
        self._host_seconds = 0.0
        self._num_observed = 0
        self._relative_errors: deque[float] = deque(maxlen=NUM_ERRORS)

    @staticmethod
    def fit(target_samples: list[ProfileSample], draft_samples: list[ProfileSample] = ()) -> "LatencyModel":
        """From profiled passes of the target and, if there is one, of the draft model."""
        return LatencyModel(CostCurve.fit(target_samples), CostCurve.fit(draft_samples) if draft_samples else None)

    @property
    def host_seconds(self) -> float:
        """Expected time of everything that is not a pass of a model, in seconds."""
        return self._host_seconds

    def target_seconds(self, view: BatchView, num_draft_tokens: np.ndarray) -> np.ndarray:
        """Time of the target pass with that many draft tokens (ascending) in the batch: float [N], never decreasing."""
        predicted = self._profiled_target_seconds(view, num_draft_tokens)
        log_factor = self._target_log_factor + self._residual(view, num_draft_tokens)
        return np.maximum.accumulate(predicted * np.exp(log_factor))

    def draft_seconds(self, view: BatchView, use_model: np.ndarray, max_depth: int) -> np.ndarray:
        """Time of 0..max_depth draft passes over all rows of use_model: float [max_depth + 1], 0 at depth 0.

        The first pass also feeds the tokens the draft model has not seen. Rows that stop early are charged to the
        full depth, which makes this an upper bound.
        """
        depths = np.arange(max_depth + 1)
        return self._draft_seconds(view, np.where(use_model, max_depth, 0), depths)

    def predict(self, view: BatchView, plan: DraftPlan, verified: np.ndarray) -> PredictedSeconds:
        """Time of a step that drafts plan and verifies verified (int [R]) draft tokens of each row."""
        drafted = np.where(plan.use_model, plan.lengths, 0)
        draft = self._draft_seconds(view, drafted, np.array([0, drafted.max(initial=0)]))[-1]
        off, target = self.target_seconds(view, np.array([0, verified.sum()])).tolist()
        return PredictedSeconds(float(draft), target, self._host_seconds, off=off + self._host_seconds)

    def observe(self, view: BatchView, plan: DraftPlan, verified: np.ndarray, measured: StepSeconds) -> None:
        """Correct the model by one measured step."""
        predicted = self.predict(view, plan, verified)
        self._relative_errors.append(abs(predicted.total / measured.total - 1.0))
        self._num_observed += 1
        rate = max(GLOBAL_RATE, 1.0 / (self._num_observed + 3))
        surprise = _surprise(measured.target, predicted.target)
        self._target_log_factor += rate * surprise
        self._learn_residual(view, verified.sum(), surprise)
        # Where no draft pass ran, measured draft time is that of looking up offers: the host's.
        host = measured.host if predicted.draft else measured.host + measured.draft
        if predicted.draft and measured.draft:
            self._draft_log_factor += GLOBAL_RATE * _surprise(measured.draft, predicted.draft)
        if self._num_observed == 1:
            self._host_seconds = host
        self._host_seconds += rate * (min(host, max(4.0 * self._host_seconds, 1e-4)) - self._host_seconds)

    @property
    def median_relative_error(self) -> float | None:
        """Median of |predicted / measured - 1| of step time over the last few hundred steps; None before the first."""
        return float(np.median(self._relative_errors)) if self._relative_errors else None

    def to_dict(self) -> dict:
        """The profiled curves, JSON-able, for the cache on disk. Corrections belong to the moment and are not in it."""
        return {
            "format": FORMAT,
            "target": self.target.to_dict(),
            "draft": self.draft.to_dict() if self.draft else None,
        }

    @staticmethod
    def from_dict(data: dict) -> "LatencyModel":
        """Inverse of to_dict. ValueError says what is corrupt or from another version."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"cost model is not of format {FORMAT}: delete the cached profile and profile again")
        draft = None if data.get("draft") is None else CostCurve.from_dict(data["draft"])
        return LatencyModel(CostCurve.from_dict(data.get("target")), draft)

    def state(self) -> dict:
        """Curves, corrections and prediction error, JSON-able."""
        return {
            **self.to_dict(),
            "target_factor": float(np.exp(self._target_log_factor)),
            "draft_factor": float(np.exp(self._draft_log_factor)),
            "size_factors": {
                name: np.exp(residuals).round(4).tolist()
                for name, residuals in zip(("decode", "with prefill"), self._residuals, strict=True)
            },
            "host_seconds": self._host_seconds,
            "median_relative_error": self.median_relative_error,
        }

    def _profiled_target_seconds(self, view: BatchView, num_draft_tokens: np.ndarray) -> np.ndarray:
        """Before correction. Draft tokens attend to the batch's mean context."""
        context = float(view.context_tokens.sum())
        num_rows = view.num_rows
        attended = (num_rows + num_draft_tokens) * (context / max(num_rows, 1))
        attended = attended + view.prefill_attended_tokens
        return self.target.seconds(
            view.ordinary_tokens + num_draft_tokens,
            context + view.prefill_context_tokens,
            num_rows + view.num_prefills,
            attended,
            num_rows + num_draft_tokens,
        )

    def _draft_seconds(self, view: BatchView, lengths: np.ndarray, depths: np.ndarray) -> np.ndarray:
        """Time up to each of depths when row i takes part in the first lengths[i] passes. lengths: int [R]."""
        max_depth = int(depths[-1])
        if self.draft is None or max_depth == 0 or not lengths.any():
            return np.zeros(len(depths))
        takes_part = np.arange(max_depth) < lengths[:, None]
        rows = takes_part.sum(axis=0)
        context = view.context_tokens @ takes_part
        unseen = int(view.unseen_tokens[takes_part[:, 0]].sum())
        catch_up = np.where(np.arange(max_depth) == 0, unseen, 0)
        passes = self.draft.seconds(rows + catch_up, context, rows) * np.exp(self._draft_log_factor)
        return np.concatenate([[0.0], np.cumsum(passes)])[depths]

    def _node_position(self, view: BatchView, num_draft_tokens: np.ndarray | int) -> np.ndarray:
        return np.minimum(np.log2(np.maximum(view.ordinary_tokens + num_draft_tokens, 1)), NUM_NODES - 1)

    def _residual(self, view: BatchView, num_draft_tokens: np.ndarray) -> np.ndarray:
        residuals = self._residuals[int(view.prefill_tokens > 0)]
        return np.interp(self._node_position(view, num_draft_tokens), np.arange(NUM_NODES), residuals)

    def _learn_residual(self, view: BatchView, num_draft_tokens: int, surprise: float) -> None:
        """Move the two nodes around this size, each by its share in the prediction."""
        residuals = self._residuals[int(view.prefill_tokens > 0)]
        position = float(self._node_position(view, num_draft_tokens))
        for node in {int(np.floor(position)), int(np.ceil(position))}:
            share = 1.0 - abs(position - node)
            residuals[node] += share * (RESIDUAL_RATE * surprise - RESIDUAL_PULL * residuals[node])


def _surprise(measured: float, predicted: float) -> float:
    return float(np.clip(np.log(measured / predicted), -MAX_SURPRISE, MAX_SURPRISE))
