"""The time of a step: profiled cost curves, corrected by every measured step (see
cost_correction)."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smartspec.control.checks import seconds_problem
from smartspec.control.latency.cost_correction import CostCorrection, PassSize
from smartspec.control.latency.cost_curve import CostCurve, ProfileSample
from smartspec.control.latency.robust_mean import RobustMean
from smartspec.control.records import BatchView, DrafterSpec, Outcome, Plan

NUM_ERRORS = 256
FORMAT = 3


@dataclass(frozen=True)
class PredictedSeconds:
    """The predicted time of the parts of one step, in seconds."""

    drafts: dict[int, float]  # of the drafters that have passes in the step, by number
    target: float
    host: float
    off: float  # of the whole step if it had no draft token

    @property
    def draft(self) -> float:
        return sum(self.drafts.values())

    @property
    def total(self) -> float:
        return self.draft + self.target + self.host


class LatencyModel:
    """Predicts the times of the parts of a step and learns from measured ones.

    target: cost of one pass of the target. drafts: by drafter, cost of one of its passes, None
    where it has none; those at the end may be left out. Without a profile a guess is enough:
    LatencyModel(CostCurve.linear(0.04, 0.002)).
    """

    def __init__(self, target: CostCurve, drafts: tuple[CostCurve | None, ...] = ()):
        self.target = target
        self.drafts = tuple(drafts)
        self._target = CostCorrection(target)
        self._drafts = {
            number: CostCorrection(curve)
            for number, curve in enumerate(drafts)
            if curve is not None
        }
        self._has_model_free = not self._drafts  # some drafter needs no passes
        self._specs = (DrafterSpec(""),) * len(self.drafts)
        self._host = RobustMean()
        self._sizes_seen: set[int] = set()
        self._relative_errors: deque[float] = deque(maxlen=NUM_ERRORS)

    @staticmethod
    def fit(
        target_samples: list[ProfileSample], draft_samples: Sequence[list[ProfileSample]] = ()
    ) -> "LatencyModel":
        """Return the model of profiled passes of the target and of each drafter. A drafter without
        passes has no samples."""
        drafts = tuple(CostCurve.fit(samples) if samples else None for samples in draft_samples)
        return LatencyModel(CostCurve.fit(target_samples), drafts)

    def use_drafters(self, drafters: tuple[DrafterSpec, ...]) -> None:
        """Keep the properties of the drafters that passes depend on. ValueError where those with
        passes are not exactly those that have a cost curve."""
        with_passes = [number for number, drafter in enumerate(drafters) if drafter.has_passes]
        if with_passes != list(self._drafts):
            raise ValueError(
                f"of drafters {[drafter.name for drafter in drafters]} numbers {with_passes} have "
                f"passes of their own, and there are cost curves for {list(self._drafts)}: give "
                "LatencyModel a curve for each that has passes, and None for the others"
            )
        self._has_model_free = len(with_passes) < len(drafters)
        self._specs = drafters

    @property
    def host_seconds(self) -> float:
        """The expected time of everything that is not a pass of a model, in seconds."""
        return self._host.mean

    def target_seconds(self, view: BatchView, num_draft_tokens: np.ndarray) -> np.ndarray:
        """Return the seconds of the target pass with that many draft tokens in the batch: float
        [N], never decreasing with them."""
        return self._target.seconds(_target_size(view, num_draft_tokens))

    def off_seconds(self, view: BatchView) -> float:
        """Return the seconds of the target pass without draft tokens."""
        return self._target.seconds_of_one(_target_size(view, 0))

    def profiled_seconds(
        self, view: BatchView, num_draft_tokens: np.ndarray, prefill_tokens: float
    ) -> np.ndarray:
        """Return the profile's seconds of the target's pass with that many draft tokens beside so
        much prefill, of whichever requests: float [N]."""
        decoding = view.num_rows + num_draft_tokens
        context = view.total_context_tokens
        attended = decoding * (context / max(view.num_rows, 1) + 1.0)
        return self.target.seconds(
            decoding + prefill_tokens, context, view.num_rows, attended, decoding
        )

    def draft_seconds(
        self, view: BatchView, drafter: np.ndarray, max_depth: int, width: int = 1
    ) -> np.ndarray:
        """Return the seconds of drafts that are 0..max_depth deep, of each drafter over its rows
        (drafter, width: see Plan): float [D, max_depth + 1], 0 at depth 0. A draft takes a pass for
        each level, or one pass with an entry for each level.

        A row takes part as long as it may carry another draft token; the first pass is also the
        draft prefill. The time is exact if every row drafts as deep as it may.
        """
        seconds = np.zeros((len(view.drafters), max_depth + 1))
        plan = Plan(np.minimum(view.row_caps, max_depth), drafter, width=width)
        for number, sizes in self._draft_sizes(view, plan, every_depth=True).items():
            passes, spec = self._drafts[number].seconds(sizes), self._specs[number]
            passes = passes if spec.one_pass_depth else np.cumsum(passes)
            first = spec.kept_passes + 1
            seconds[number, first : first + len(passes)] = passes
            seconds[number, first + len(passes) :] = passes[-1]
        return seconds

    def predict(self, view: BatchView, plan: Plan, verified: np.ndarray) -> PredictedSeconds:
        """Return the times of a step that carries out plan and verifies verified (int [R]) draft
        tokens of each row."""
        return self._predict(view, verified, self._draft_sizes(view, plan))

    def _predict(
        self, view: BatchView, verified: np.ndarray, draft_sizes: dict[int, PassSize]
    ) -> PredictedSeconds:
        drafts = {
            number: float(self._drafts[number].seconds(size).sum())
            for number, size in draft_sizes.items()
        }
        num_verified = sum(verified.tolist())
        off = target = self._target.seconds_of_one(_target_size(view, 0))
        if num_verified:
            target = self._target.seconds_of_one(_target_size(view, num_verified))
        return PredictedSeconds(drafts, target, self.host_seconds, off=off + self.host_seconds)

    def observe(self, steps: Sequence[Outcome]) -> None:
        """Correct the model by finished steps, in their order. ValueError, and nothing is learned,
        if a measured time cannot be true.

        Passes are learned from two steps only: the last of those with the fewest tokens, and the
        last of those with the most. The difference of their times shows best the cost of a token,
        and the first pass of a size may take longer. Where several drafters ran, the measured time
        is divided among them as predicted.
        """
        for step in steps:
            if problem := seconds_problem(step.seconds):
                raise ValueError(problem)
        last = {step.num_fed_tokens: index for index, step in enumerate(steps)}
        chosen = [steps[index] for index in sorted({last[min(last)], last[max(last)]})]
        sizes = [self._draft_sizes(step.view, step.as_drafted()) for step in chosen]
        predicted = [
            self._predict(step.view, step.verified, of_step)
            for step, of_step in zip(chosen, sizes, strict=True)
        ]
        self._observe_target(chosen)
        self._observe_drafts(list(zip(chosen, predicted, sizes, strict=True)))
        for step, each in zip(chosen, predicted, strict=True):
            self._relative_errors.append(abs(each.total / step.seconds.total - 1.0))
        for step in steps:
            # Where no draft pass ran, measured draft time is that of model-free drafters: the
            # host's.
            of_host = self._has_model_free and not any(
                [any(self._passes(number, step.as_drafted()).tolist()) for number in self._drafts]
            )
            self._host.observe(step.seconds.host + (step.seconds.draft if of_host else 0.0))

    def _observe_target(self, steps: Sequence[Outcome]) -> None:
        is_first_use = np.array([step.num_fed_tokens not in self._sizes_seen for step in steps])
        self._sizes_seen.update(step.num_fed_tokens for step in steps)
        sizes = [
            _target_size(step.view, step.num_fed_tokens - step.view.ordinary_tokens)
            for step in steps
        ]
        of_all = PassSize(*np.array(sizes, dtype=float).T)
        seconds = np.array([step.seconds.target for step in steps])
        self._target.observe(self._target.features(of_all), seconds, is_first_use)

    def _observe_drafts(
        self, steps: list[tuple[Outcome, PredictedSeconds, dict[int, PassSize]]]
    ) -> None:
        """Correct the costs of the drafters' passes. steps: each measured one, its prediction, and
        the sizes of its draft passes."""
        for number, correction in self._drafts.items():
            ran = [each for each in steps if number in each[2] and each[0].seconds.draft]
            if ran:
                features = [correction.features(sizes[number]).sum(axis=0) for _, _, sizes in ran]
                seconds = [
                    step.seconds.draft * predicted.drafts[number] / predicted.draft
                    for step, predicted, _ in ran
                ]
                correction.observe(
                    np.array(features), np.array(seconds), np.zeros(len(ran), dtype=bool)
                )

    @property
    def median_relative_error(self) -> float | None:
        """The median of |predicted / measured - 1| of step time over the last NUM_ERRORS steps that
        the model learned from; None before the first."""
        return float(np.median(self._relative_errors)) if self._relative_errors else None

    @property
    def drift(self) -> float:
        """The present time of passes of the target over that of the profile. Another thread may
        read it."""
        return self._target.drift

    def to_dict(self) -> dict:
        """Return the profiled curves, JSON-able, for the cache on disk. Corrections hold only now
        and are not in it."""
        return {
            "format": FORMAT,
            "target": self.target.to_dict(),
            "drafts": [curve and curve.to_dict() for curve in self.drafts],
        }

    @staticmethod
    def from_dict(data: dict) -> "LatencyModel":
        """Return the inverse of to_dict. ValueError names the part that is corrupt or from another
        version."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(
                f"cost model is not of format {FORMAT}: delete the cached profile and profile again"
            )
        drafts = tuple(curve and CostCurve.from_dict(curve) for curve in data.get("drafts") or ())
        return LatencyModel(CostCurve.from_dict(data.get("target")), drafts)

    def state(self) -> dict:
        """Return profiled and corrected curves, and the prediction error, JSON-able."""
        return {
            **self.to_dict(),
            "corrected_target": self._target.state(),
            "corrected_drafts": {
                number: correction.state() for number, correction in self._drafts.items()
            },
            "host_seconds": self.host_seconds,
            "median_relative_error": self.median_relative_error,
        }

    def _draft_sizes(
        self, view: BatchView, plan: Plan, every_depth: bool = False
    ) -> dict[int, PassSize]:
        """Return the passes of each drafter that runs, by its number. every_depth: where it needs
        one pass, the passes for every depth up to the plan's instead."""
        sizes = {}
        for number in self._drafts:
            depths, spec = self._passes(number, plan), self._specs[number]
            if not depths.any():
                continue
            lag, context = view.drafters[number].lag, view.context_tokens
            if spec.context_limit:
                context = np.minimum(context, spec.context_limit)
            if spec.one_pass_depth:
                deepest = min(spec.one_pass_depth, int(depths.max()))
                limits = np.arange(1 if every_depth else deepest, deepest + 1)
                sizes[number] = _one_pass(context, lag, depths, limits)
            else:
                sizes[number] = _passes(context, lag, depths, plan.width)
        return sizes

    def _passes(self, number: int, plan: Plan) -> np.ndarray:
        """Return the passes that a drafter makes of each draft, beside those that it makes in every
        step: int [R]."""
        passes = np.where(plan.drafter == number, plan.passes, 0)
        kept = self._specs[number].kept_passes
        return np.maximum(passes - kept, 0) if kept else passes


def _one_pass(
    context_tokens: np.ndarray, lag: np.ndarray, num_entries: np.ndarray, limits: np.ndarray
) -> PassSize:
    """Return the pass in which row i has num_entries[i] (int [R], not all 0) entries for its draft,
    but no row more than a limit: one pass for each of limits, int [L]. context_tokens: int [R],
    that the pass reads. lag: int [R]."""
    entries = np.minimum(num_entries[:, None], limits)
    takes_part = num_entries > 0
    scored, prefill = entries.sum(axis=0), lag * takes_part
    context = context_tokens @ takes_part + scored
    attended = (context_tokens + 1) @ entries + prefill @ context_tokens
    rows = np.full(len(limits), takes_part.sum())
    return PassSize(scored + prefill.sum(), context, rows, attended, scored_tokens=scored)


def _passes(
    context_tokens: np.ndarray, lag: np.ndarray, num_passes: np.ndarray, width: int
) -> PassSize:
    """Return the draft passes. Row i takes part in the first num_passes[i] passes (int [R], not all
    0), with one node in the first of them and width nodes in the others. context_tokens: int [R],
    that a pass reads. lag: int [R]."""
    # The rows at a depth are those with more passes than that. So rows are counted by their number
    # of passes, and the counts are summed from the end.
    rows, context = (
        np.bincount(num_passes, of_row)[:0:-1].cumsum()[::-1] for of_row in (None, context_tokens)
    )
    depths = np.arange(len(rows))
    nodes = np.where(depths == 0, 1, width)
    context = context + rows * (1 + depths * width)
    attended, fed = context * nodes, rows * nodes
    lag = np.where(num_passes > 0, lag, 0)
    if lag.any():
        attended[0] += lag @ context_tokens
    return PassSize(
        fed + np.where(depths == 0, lag.sum(), 0), context, rows, attended, scored_tokens=fed
    )


def _target_size(view: BatchView, num_draft_tokens: int | np.ndarray) -> PassSize:
    """Return the target pass with that many draft tokens, which attend to the batch's mean
    context."""
    context = view.total_context_tokens
    decoding = view.num_rows + num_draft_tokens
    return PassSize(
        fed_tokens=decoding + view.prefill_tokens,
        context_tokens=context + decoding + view.prefill_context_tokens,
        rows=view.num_rows + view.num_prefills,
        attended_tokens=decoding * (context / max(view.num_rows, 1) + 1.0)
        + view.prefill_attended_tokens,
        scored_tokens=decoding + view.num_prefills,
        prefill_tokens=view.prefill_tokens,
    )
