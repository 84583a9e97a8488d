"""The true time of a simulated step.

The ground truth has three parts: costs of single passes, noise around them, and a schedule of
throttling. The costs are a roofline of known hardware, or curves measured on a live engine. The
controller sees none of this. As on a real machine, it gets a start-up profile, which is noisy and
maybe wrong, and then measured steps.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from smartspec.control import BatchView, CostCurve, LatencyModel, Plan, ProfileSample, StepSeconds

# (decoding requests, seconds of a step), ascending
ControllerSeconds = tuple[tuple[int, float], ...]
NUM_PROFILE_REPETITIONS = 3  # the profile keeps the best of so many, as the live engine's does


class PassCost(Protocol):
    """Seconds of one pass of one model: a CostCurve, or hardware.Roofline."""

    def seconds(
        self, fed_tokens, context_tokens, rows, attended_tokens=None, scored_tokens=None
    ) -> np.ndarray: ...


@dataclass(frozen=True)
class GroundTruthTime:
    """True times of a step; itself the noise-free Latency (policies.base) of an unthrottled
    machine."""

    target: PassCost  # cost of one pass of the target
    # by drafter, of one of its passes, None where it has none; those at the end may be left out
    drafts: tuple[PassCost | None, ...] = ()
    host_seconds: float = 0.0  # everything that is neither a pass nor the controller, per step
    # noise of each part of a step, see jittered
    jitter: float = 0.0
    # (second, factor) in ascending order: from that second on, passes take factor times as long
    throttle: tuple[tuple[float, float], ...] = ()
    # the controller's part of a step in which it queries drafters, interpolated between numbers of
    # decoding requests; empty to charge none
    controller_seconds: ControllerSeconds = ()
    factor: float = 1.0  # what at() has already applied
    # draft passes run beside the target's pass, on a device of their own, so that only what they
    # take longer than it is draft time
    is_parallel: bool = False
    # as drafts, of the passes of a draft after its first, where they are not exact, see
    # lab.worlds.layer_parallel
    later_drafts: tuple[PassCost | None, ...] = ()

    def __post_init__(self):
        starts = [second for second, _ in self.throttle]
        if starts != sorted(starts):
            raise ValueError(f"throttle is {self.throttle}: give ascending seconds")

    def at(self, view: BatchView) -> "GroundTruthTime":
        """The noise-free Latency of that step, throttling and the controller included: what perfect
        estimates know."""
        factor, host = self.factor * self._throttle_factor(view.now), self._host_seconds(view)
        return replace(self, factor=factor, throttle=(), host_seconds=host, controller_seconds=())

    def target_seconds(self, view: BatchView, num_draft_tokens: np.ndarray) -> np.ndarray:
        """Time of the target pass with that many draft tokens (int [N]), on rows of mean context:
        float [N]."""
        num_draft_tokens = np.asarray(num_draft_tokens, dtype=float)
        mean_context = view.context_tokens.sum() / max(view.num_rows, 1)
        attended = (view.num_rows + num_draft_tokens) * (mean_context + 1)
        return self._target_pass(view, num_draft_tokens, attended)

    def off_seconds(self, view: BatchView) -> float:
        """Time of the target pass without draft tokens."""
        return float(self.target_seconds(view, np.zeros(1))[0])

    def profiled_seconds(
        self, view: BatchView, num_draft_tokens: np.ndarray, prefill_tokens: float
    ) -> np.ndarray:
        """The time of the target pass beside so much prefill, of one request."""
        prefill = int(prefill_tokens)
        beside = replace(
            view,
            num_prefills=int(prefill > 0),
            prefill_tokens=prefill,
            prefill_context_tokens=prefill,
        )
        return self.target_seconds(beside, num_draft_tokens)

    def draft_seconds(
        self, view: BatchView, drafter: np.ndarray, max_depth: int, width: int = 1
    ) -> np.ndarray:
        """Time of 0..max_depth passes of each drafter over its rows (drafter: int [R]): float [D,
        max_depth + 1].

        The first pass is also the draft prefill.
        """
        num_fed = np.tile(np.where(np.arange(max_depth) == 0, 1, width), (view.num_rows, 1))
        return self._draft_passes(view, drafter, num_fed)

    def step_seconds(
        self,
        view: BatchView,
        plan: Plan,
        drafted: np.ndarray,
        verified: np.ndarray,
        rng: np.random.Generator,
        num_fed: np.ndarray | None = None,
    ) -> StepSeconds:
        """The time of this step, with noise and throttling.

        drafted, verified: int [R], draft tokens that were made and that were fed to the target.
        num_fed: int [R, passes], what each row fed to the draft passes beside the tokens that its
        drafter's KV lacked; None for chains: a row takes part in as many passes as its draft has
        tokens, also if it was stopped early.
        """
        attended = (1 + verified) @ (view.context_tokens + 1) + (
            verified * (verified + 1)
        ).sum() / 2
        target = self._target_pass(view, float(verified.sum()), float(attended))
        if num_fed is None:
            num_fed = (np.arange(drafted.max(initial=0)) < drafted[:, None]).astype(np.int64)
        draft = self._draft_passes(view, plan.drafter, num_fed)[:, -1].sum()
        if self.is_parallel:
            draft = max(draft - target, 0.0)
        throttled = self._throttle_factor(view.now)
        host = self._host_seconds(view) if plan.queried else self.host_seconds
        seconds = StepSeconds(float(draft) * throttled, float(target) * throttled, host)
        return jittered(seconds, self.jitter, rng)

    def profile(self, distortion: float | str = 1.0, seed: int = 0) -> LatencyModel:
        """The start-up profile that the controller would get on the unthrottled machine.

        distortion: 1 for a correct profile. Another number: all times are too long by this factor.
        "drafts:3": those of draft passes alone are, by this one. "no-context": the profile ignores
        the length of contexts.
        """
        rng = np.random.default_rng(seed)
        of_drafts, _, number = str(distortion).rpartition(":")
        factor = 1.0 if distortion == "no-context" else float(number)
        factors = (1.0 if of_drafts else factor, factor)
        profiled = (self.target, *(self.later_drafts or self.drafts))
        target, *drafts = [
            cost and CostCurve.fit(self._profile_samples(cost, factors[n > 0], rng))
            for n, cost in enumerate(profiled)
        ]
        if self.is_parallel:  # what hides beside the target's pass costs nothing
            drafts = [curve and CostCurve.linear(0.0, 0.0) for curve in drafts]
        if distortion == "no-context":
            nothing = {"per_context_token": 0.0, "per_attended_token": 0.0}
            target, *drafts = [curve and replace(curve, **nothing) for curve in (target, *drafts)]
        return LatencyModel(target, tuple(drafts))

    def num_hidden_passes(self, context_tokens: int) -> int:
        """Draft passes of one request that take no longer together than the target's pass beside
        them, 1 at least: PEARL's length."""
        target, draft = (
            float(cost.seconds(1, context_tokens, 1)) for cost in (self.target, self.drafts[0])
        )
        return max(1, round(target / draft))

    def _host_seconds(self, view: BatchView) -> float:
        if not self.controller_seconds:
            return self.host_seconds
        return self.host_seconds + float(
            np.interp(view.num_rows, *zip(*self.controller_seconds, strict=True))
        )

    def _throttle_factor(self, now: float) -> float:
        return next((value for second, value in reversed(self.throttle) if now >= second), 1.0)

    def _target_pass(
        self, view: BatchView, num_draft_tokens: np.ndarray | float, attended: np.ndarray | float
    ) -> np.ndarray:
        """attended: by the decoding rows; the prefills' own is added. A prefill has the logits of
        its last token."""
        decoding_tokens = view.num_rows + num_draft_tokens
        return self.factor * self.target.seconds(
            decoding_tokens + view.prefill_tokens,
            view.context_tokens.sum() + decoding_tokens + view.prefill_context_tokens,
            view.num_rows + view.num_prefills,
            attended + view.prefill_attended_tokens,
            decoding_tokens + view.num_prefills,
        )

    def _draft_passes(
        self, view: BatchView, drafter: np.ndarray, num_fed: np.ndarray
    ) -> np.ndarray:
        """float [D, depths + 1], time up to each depth when row i feeds num_fed[i, d] nodes (int
        [R, depths]) to pass d of its drafter."""
        seconds = np.zeros((len(view.drafters), num_fed.shape[1] + 1))
        is_first = np.arange(num_fed.shape[1]) == 0
        for number, cost in enumerate(self.drafts):
            nodes = num_fed * (drafter == number)[:, None]
            if cost is None or not nodes.any():
                continue
            takes_part = nodes > 0
            rows, scored = takes_part.sum(axis=0), nodes.sum(axis=0)
            held = np.cumsum(nodes, axis=1) * takes_part  # in the drafter's KV after the text
            context = view.context_tokens @ takes_part + held.sum(axis=0)
            lag = np.where(takes_part[:, 0], view.drafters[number].lag, 0)
            fed = scored + is_first * lag.sum()
            attended = (
                view.context_tokens @ nodes
                + (nodes * held).sum(axis=0)
                + is_first * (lag @ view.context_tokens)
            )
            passes = cost.seconds(fed, context, rows, attended, scored)
            if self.later_drafts:
                later = self.later_drafts[number].seconds(fed, context, rows, attended, scored)
                passes = np.where(is_first, passes, later)
            passes = np.where(rows > 0, passes, 0.0)
            seconds[number, 1:] = np.cumsum(passes)
        return self.factor * seconds

    def _profile_samples(
        self, cost: PassCost, factor: float, rng: np.random.Generator
    ) -> list[ProfileSample]:
        """Every pass of the grid, best of a few noisy measurements. A row of many tokens is a
        prefill: few logits."""
        samples = []
        for rows, num_new, context in profile_grid():
            fed, held = rows * num_new, rows * (context + num_new)
            scored = fed if num_new <= 16 else rows
            exact = float(
                cost.seconds(fed, held, rows, fed * (context + (num_new + 1) / 2), scored)
            )
            measured = [
                jittered(StepSeconds(0.0, exact, 0.0), self.jitter, rng).target
                for _ in range(NUM_PROFILE_REPETITIONS)
            ]
            samples.append(ProfileSample(fed, held, rows, factor * min(measured), scored))
        return samples


def jittered(seconds: StepSeconds, jitter: float, rng: np.random.Generator) -> StepSeconds:
    """One noisy measurement. jitter: standard deviation of log seconds; the mean stays the true
    time. Draws the same count of random numbers whatever comes out."""
    draft, target, host = np.exp(jitter * (rng.standard_normal(3) - jitter / 2)).tolist()
    # not used; a seed's later numbers are those with which published figures were made
    rng.random(), rng.exponential()
    return StepSeconds(seconds.draft * draft, seconds.target * target, seconds.host * host)


def profile_grid() -> list[tuple[int, int, int]]:
    """(rows, new tokens per row, context per row) of profiled passes: decoding, drafts, contexts,
    prefill."""
    batches = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    grid = [
        (rows, num_new, 256)
        for rows in batches
        for num_new in (1, 2, 3, 4, 6, 8)
        if rows * num_new <= 1024
    ]
    grid += [
        (rows, num_new, context)
        for rows in (1, 8, 32)
        for num_new in (1, 4)
        for context in (1024, 4096)
    ]
    return grid + [
        (1, num_new, context) for num_new in (32, 128, 512, 1024, 2048) for context in (0, 2048)
    ]
