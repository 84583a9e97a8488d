"""One draft length for the whole step, out of a given set, for engines with captured graphs.

The time of a step is no smooth function of its tokens there. A step of decoding requests alone runs as one graph, a
step with prefill does not, and the next captured size may take much longer. So steps of each length are timed, by the
size of the batch, with and without prefill. Measured times are kept relative to the profile's, in two factors. One is
common to all lengths: a slower machine makes them all slower. The other is of each length. The time of a length that
was not tried is the profile's, times the common factor.
"""

from dataclasses import dataclass, field
from math import exp, log

import numpy as np

from smartspec.control.goodput.budget import size_of
from smartspec.control.planner.lengths import LengthPlan, objective, relative_gain
from smartspec.control.policy import Estimates, Latency, length_caps
from smartspec.control.records import BatchView, Outcome

MEMORY = 16  # steps of a length that its time is learned over, and those of a batch size for its prefill
MOST = log(2.0)  # a step that takes twice as long as before does not do so because of its length


@dataclass
class _Steps:
    """The times of the steps of one batch size, with prefill or without it. Dicts are by length."""

    factor: float = 0.0  # log of measured over profiled seconds, common to all lengths
    of_length: dict[int, float] = field(default_factory=dict)  # log of each length's own factor, beside the common one
    counts: dict[int, int] = field(default_factory=dict)  # steps
    # The size of the last step: the arguments of Latency.profiled_seconds.
    last: dict[int, tuple[BatchView, np.ndarray, float]] = field(default_factory=dict)

    def observe(self, length: int, size: tuple[BatchView, np.ndarray, float], ratio: float) -> None:
        """Learn from a step. size: see last. ratio: measured by profiled seconds."""
        self.last[length] = size
        if not self.counts:
            self.factor = log(ratio)
        self.of_length.setdefault(length, log(ratio) - self.factor)
        count = self.counts[length] = self.counts.get(length, 0) + 1
        error = log(ratio) - self.factor - self.of_length[length]
        step = min(max(error, -MOST), MOST) / min(count, MEMORY)
        self.factor += step / 2
        self.of_length[length] += step / 2

    def change_profile(self, old: Latency, new: Latency) -> None:
        """Make the factors relative to a new profile. The times of the last size of each length stay the same."""
        for length, size in self.last.items():
            self.of_length[length] += log(float(old.profiled_seconds(*size)[0] / new.profiled_seconds(*size)[0]))

    def ratios(self, lengths: list[int]) -> list[float]:
        """Return measured over profiled seconds of each length, once at least one length was measured."""
        return [exp(self.factor + self.of_length.get(length, 0.0)) for length in lengths]


@dataclass
class _Batch:
    """The steps of one batch size."""

    plain: _Steps = field(default_factory=_Steps)
    with_prefill: _Steps = field(default_factory=_Steps)
    mixed: float = 0.0  # share of its steps that have prefill
    prefill_tokens: float = 0.0  # of a step that has prefill
    emitted: float = 0.0  # tokens of a request in a step
    num_steps: int = 0
    last_used: dict[int, int] = field(default_factory=dict)  # by length, the number of its last step


class LengthTimes:
    """The allowed lengths, and the seconds of the target's pass with each."""

    def __init__(self, allowed_lengths: tuple[int, ...]):
        self.allowed_lengths = allowed_lengths
        self._latency: Latency | None = None
        self._batches: dict[int, _Batch] = {}

    def use(self, latency: Latency) -> None:
        """Make measured times relative to this profile."""
        if self._latency is not None and latency is not self._latency:
            for batch in self._batches.values():
                batch.plain.change_profile(self._latency, latency)
                batch.with_prefill.change_profile(self._latency, latency)
        self._latency = latency

    def others(self, num_requests: int, length: int) -> list[int]:
        """Return the other lengths, the one that was used longest ago with so many requests first."""
        used = self._batches.get(size_of(num_requests), _Batch()).last_used
        return sorted({0, *self.allowed_lengths} - {length}, key=lambda each: used.get(each, 0))

    def try_unknown(self, num_requests: int, length: int) -> int | None:
        """Return the longest of the shorter lengths that was never used with so many requests. It is returned once: a
        host may not carry it out, for example where vLLM's workers choose the tokens that they verify."""
        batch = self._batches.setdefault(size_of(num_requests), _Batch())
        shorter = {each for each in (0, *self.allowed_lengths) if each < length}
        unknown = max(shorter - batch.last_used.keys(), default=None)
        if unknown is not None:
            batch.last_used[unknown] = batch.num_steps
        return unknown

    def observe(self, outcome: Outcome) -> None:
        """Learn from a step in which requests decoded."""
        view, latency = outcome.view, self._latency
        if latency is None:
            return
        batch = self._batches.setdefault(size_of(view.num_rows + view.num_prefills), _Batch())
        steps, length = batch.with_prefill if view.prefill_tokens else batch.plain, int(outcome.verified.max())
        size = view, outcome.verified.sum(keepdims=True), view.prefill_tokens
        batch.num_steps += 1
        batch.last_used[length] = batch.num_steps
        steps.observe(length, size, outcome.seconds.target / float(latency.profiled_seconds(*size)[0]))
        rate = 1.0 / MEMORY if batch.emitted else 1.0
        emitted = 1.0 + float(outcome.accepted.mean())
        batch.emitted += rate * (emitted - batch.emitted)
        batch.mixed += rate * (bool(view.prefill_tokens) - batch.mixed)
        if view.prefill_tokens:
            rate = rate if batch.prefill_tokens else 1.0
            batch.prefill_tokens += rate * (view.prefill_tokens - batch.prefill_tokens)

    def seconds(self, view: BatchView, lengths: list[int], modelled: np.ndarray) -> np.ndarray:
        """Return the seconds of this step's pass with each of these lengths: float [n]. modelled: the same by the cost
        model."""
        batch = self._batches.get(size_of(view.num_rows + view.num_prefills), _Batch())
        steps = batch.with_prefill if view.prefill_tokens else batch.plain
        return self._measured(steps, view, lengths, view.prefill_tokens) if steps.counts else modelled

    def seconds_of_next(
        self, view: BatchView, lengths: list[int], modelled: np.ndarray, emitted: np.ndarray
    ) -> np.ndarray:
        """Return the expected seconds of the next step's pass, which may have prefill or not: float [n].

        view has none. emitted: float [n], tokens of a request in a step of each length. Every answer comes with a
        prompt: requests that emit more in a step have more prefill in it."""
        plain = self.seconds(view, lengths, modelled)
        batch = self._batches.get(size_of(view.num_rows + view.num_prefills))
        if batch is None or not batch.with_prefill.counts:
            return plain
        mixed = self._measured(batch.with_prefill, view, lengths, batch.prefill_tokens)
        return plain + batch.mixed * emitted / batch.emitted * (mixed - plain)

    def _measured(self, steps: _Steps, view: BatchView, lengths: list[int], prefill_tokens: float) -> np.ndarray:
        assert self._latency is not None
        numbers = view.num_rows * np.array(lengths)
        return self._latency.profiled_seconds(view, numbers, prefill_tokens) * steps.ratios(lengths)


def plan_uniform(
    times: LengthTimes,
    view: BatchView,
    estimates: Estimates,
    target_seconds: np.ndarray,
    value_of_time: float | None,
    drafter: np.ndarray,
    draft_seconds: np.ndarray,
) -> LengthPlan:
    """Return the plan of the allowed length (or 0) of largest predicted goodput. Every row is charged the whole length:
    a row whose draft is shorter is padded, so that the pass keeps its shape.

    drafter: int [R]. target_seconds, value_of_time: see planner. draft_seconds: float [D, K + 1], by drafter."""
    caps = length_caps(view, drafter, estimates.max_draft_tokens)
    fits = [k for k in sorted(times.allowed_lengths) if k * view.num_rows <= view.draft_token_budget]
    candidates = np.array([0, *fits])
    emitted = _emitted(estimates.survival_of(drafter), caps, view.weights)[candidates]
    depths = np.minimum(candidates, int(caps[estimates.has_passes(drafter)].max(initial=0)))
    times.use(estimates.latency)
    modelled = target_seconds[candidates * view.num_rows]
    if any(each.kept_passes for each in estimates.drafters):
        of_each = emitted / max(float(view.weights.sum()), 1e-9)
        seconds = times.seconds_of_next(view, candidates.tolist(), modelled, of_each)
    else:
        seconds = times.seconds(view, candidates.tolist(), modelled)
    seconds = seconds + draft_seconds.sum(axis=0)[depths] + estimates.latency.host_seconds
    goodput = emitted / seconds
    values = objective(emitted, seconds, value_of_time)
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


def _emitted(survival: np.ndarray, caps: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the expected (weighted) tokens by the common length: float [K + 1]. survival: float [R, K]. caps: int
    [R]."""
    is_drafted = np.arange(survival.shape[1]) < caps[:, None]
    gained = (weights @ (survival * is_drafted)).cumsum()
    return float(weights.sum()) + np.append(0.0, gained)
