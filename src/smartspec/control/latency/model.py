"""How long a step takes: profiled cost curves, corrected by every measured step (see cost_correction)."""

from collections import deque
from dataclasses import dataclass
from math import isfinite

import numpy as np

from smartspec.control.latency.cost_correction import CostCorrection, PassSize
from smartspec.control.latency.cost_curve import CostCurve, ProfileSample
from smartspec.control.latency.robust_mean import RobustMean
from smartspec.control.records import BatchView, DraftPlan, StepSeconds

__all__ = ["CostCurve", "LatencyModel", "PredictedSeconds", "ProfileSample"]

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
        self._target = CostCorrection(target)
        self._draft = CostCorrection(draft) if draft else None
        self._host = RobustMean()
        self._sizes_seen: set[int] = set()
        self._relative_errors: deque[float] = deque(maxlen=NUM_ERRORS)

    @staticmethod
    def fit(target_samples: list[ProfileSample], draft_samples: list[ProfileSample] = ()) -> "LatencyModel":
        """From profiled passes of the target and, if there is one, of the draft model."""
        return LatencyModel(CostCurve.fit(target_samples), CostCurve.fit(draft_samples) if draft_samples else None)

    @property
    def host_seconds(self) -> float:
        """Expected time of everything that is not a pass of a model, in seconds."""
        return self._host.mean

    def target_seconds(self, view: BatchView, num_draft_tokens: np.ndarray) -> np.ndarray:
        """Time of the target pass with that many draft tokens in the batch: float [N], never decreasing with them."""
        return self._target.seconds(_target_size(view, num_draft_tokens))

    def draft_seconds(self, view: BatchView, use_model: np.ndarray, max_depth: int) -> np.ndarray:
        """Time of 0..max_depth draft passes over the rows of use_model: float [max_depth + 1], 0 at depth 0.

        A row takes part as long as it may carry another draft token; the first pass also feeds the tokens the draft
        model has not seen. The time is exact if every row drafts as deep as it may.
        """
        sizes = self._draft_sizes(view, np.where(use_model, np.minimum(view.max_draft_tokens, max_depth), 0))
        seconds = np.zeros(max_depth + 1)
        if sizes is not None:
            passes = self._draft.seconds(sizes)
            seconds[1 : len(passes) + 1] = passes
        return np.cumsum(seconds)

    def predict(self, view: BatchView, plan: DraftPlan, verified: np.ndarray) -> PredictedSeconds:
        """Time of a step that drafts plan and verifies verified (int [R]) draft tokens of each row."""
        sizes = self._draft_sizes(view, np.where(plan.use_model, plan.lengths, 0))
        draft = 0.0 if sizes is None else float(self._draft.seconds(sizes).sum())
        off, target = self.target_seconds(view, np.array([0, verified.sum()])).tolist()
        return PredictedSeconds(draft, target, self.host_seconds, off=off + self.host_seconds)

    def observe(
        self, view: BatchView, plan: DraftPlan, verified: np.ndarray, measured: StepSeconds
    ) -> PredictedSeconds:
        """Correct the model by one measured step; returns what it predicted before. ValueError, and nothing is learned,
        if its times cannot be true."""
        _check(measured)
        num_verified = int(verified.sum())
        off, target = self._target.features(_target_size(view, np.array([0, num_verified])))
        draft_sizes = self._draft_sizes(view, np.where(plan.use_model, plan.lengths, 0))
        draft = None if draft_sizes is None else self._draft.features(draft_sizes).sum(axis=0)
        predicted = PredictedSeconds(
            draft=0.0 if draft is None else self._draft.predict(draft),
            target=self._target.predict(target),
            host=self.host_seconds,
            off=self._target.predict(off) + self.host_seconds,
        )
        self._relative_errors.append(abs(predicted.total / measured.total - 1.0))
        fed_tokens = view.ordinary_tokens + num_verified
        self._target.observe(target, measured.target, is_first_use=fed_tokens not in self._sizes_seen)
        self._sizes_seen.add(fed_tokens)
        if draft is None:
            # Where no draft pass ran, measured draft time is that of looking up offers: the host's.
            self._host.observe(measured.host + measured.draft)
            return predicted
        self._host.observe(measured.host)
        if measured.draft:
            self._draft.observe(draft, measured.draft)
        return predicted

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
        """Profiled and corrected curves, and the prediction error, JSON-able."""
        return {
            **self.to_dict(),
            "corrected_target": self._target.state(),
            "corrected_draft": self._draft.state() if self._draft else None,
            "host_seconds": self.host_seconds,
            "median_relative_error": self.median_relative_error,
        }

    def _draft_sizes(self, view: BatchView, lengths: np.ndarray) -> PassSize | None:
        """The draft passes in which row i takes part in the first lengths[i] (int [R]); None if there are none."""
        max_depth = int(lengths.max(initial=0))
        if self._draft is None or max_depth == 0:
            return None
        depths = np.arange(max_depth)
        takes_part = depths < lengths[:, None]
        rows = takes_part.sum(axis=0)
        context = view.context_tokens @ takes_part + rows * (depths + 1)
        catch_up = np.where(depths == 0, (view.unseen_tokens * takes_part[:, 0]).sum(), 0)
        attended = context + np.where(depths == 0, (view.unseen_tokens * takes_part[:, 0]) @ view.context_tokens, 0)
        return PassSize(rows + catch_up, context, rows, attended, scored_tokens=rows)


def _target_size(view: BatchView, num_draft_tokens: np.ndarray | int) -> PassSize:
    """The target pass with that many draft tokens, which attend to the batch's mean context."""
    context = view.total_context_tokens
    decoding = view.num_rows + num_draft_tokens
    return PassSize(
        fed_tokens=decoding + view.prefill_tokens,
        context_tokens=context + decoding + view.prefill_context_tokens,
        rows=view.num_rows + view.num_prefills,
        attended_tokens=decoding * (context / max(view.num_rows, 1) + 1.0) + view.prefill_attended_tokens,
        scored_tokens=decoding + view.num_prefills,
        prefill_tokens=view.prefill_tokens,
    )


def _check(measured: StepSeconds) -> None:
    for name in ("draft", "target", "host"):
        seconds = getattr(measured, name)
        if not (isfinite(seconds) and seconds >= 0 and (seconds > 0 or name != "target")):
            raise ValueError(f"measured {name} time is {seconds} s: the host's clock must yield a positive finite time")
