"""The policy `uniform:1,3,5`: one draft length for all rows of a step, as captured graphs need.

It takes the length (or 0) of most expected tokens per second:

    tokens(k) / seconds(k)

Tokens follow from the survival of drafts, seconds are measured for each length (see
latency.measured). Where a host drafts after the target's pass, a length is for the next step, which
may have prefill: as often as lately, and the more often the more a length emits, since every answer
comes with a prompt. All that is uncertain is tried: each length once at each size, later the
one that was timed longest ago.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from smartspec.control.estimates import Estimates
from smartspec.control.guard import Account, size_of
from smartspec.control.latency.measured import MeasuredSeconds
from smartspec.control.planning import length_caps, model_free_first, no_drafts
from smartspec.control.policy import LEARN_STEPS, Policy
from smartspec.control.records import BatchView, Outcome, Plan

SHARE = 0.005  # of step time that trials may lose
GAP = LEARN_STEPS  # between two trials at a size
RATE = 1 / LEARN_STEPS  # of learning what steps of a size are like
OTHER = "another length for all, to know what it takes and brings"


@dataclass
class _Size:
    """What steps of one batch size are like, and their trials."""

    mixed: float = 0.0  # share with prefill
    emitted: float = 1.0  # tokens of a row in a step
    prefill_tokens: float = 0.0  # of a step with prefill
    num_steps: int = 0  # since the last trial
    tried: set[int] = field(
        default_factory=set
    )  # lengths that were tried as nothing was known of them


class Uniform(Policy):
    """lengths: those of the host's captured graphs, besides 0. A row whose draft is shorter is
    padded by the host."""

    learn_steps = LEARN_STEPS // 4  # a batch of many requests: a step teaches much, and takes long

    def __init__(self, lengths: tuple[int, ...]):
        self.lengths = (0, *sorted({*lengths} - {0}))
        self._times, self._account = MeasuredSeconds(), Account(SHARE)
        self._sizes: dict[int, _Size] = defaultdict(_Size)

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        if not view.weights.any():
            return no_drafts(view.num_rows)
        size = size_of(view.num_rows + view.num_prefills)
        drafter = model_free_first(view, estimates)
        caps = length_caps(view, drafter, estimates.max_draft_tokens)
        fits = [k for k in self.lengths if k * view.num_rows <= view.draft_token_budget]
        tokens = self._tokens(view, estimates, drafter, caps)[fits]
        seconds = self._seconds(view, estimates, size, fits, tokens / tokens[0])
        depths = np.minimum(fits, int(caps[estimates.has_passes(drafter)].max(initial=0)))
        passes = estimates.latency.draft_seconds(view, drafter, estimates.max_draft_tokens)
        seconds += passes.sum(axis=0)[depths] + estimates.latency.host_seconds
        best = int((tokens / seconds).argmax())
        chosen = self._trial(self._sizes[size], size, fits, tokens, seconds, best)
        lengths = np.minimum(caps, fits[chosen])
        reason = None if chosen == best else OTHER
        return Plan(lengths, np.where(lengths > 0, drafter, -1), reason=reason)

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        view = outcome.view
        if not view.num_rows:
            return
        size = size_of(view.num_rows + view.num_prefills)
        now, is_mixed = self._sizes[size], view.prefill_tokens > 0
        now.mixed += RATE * (is_mixed - now.mixed)
        now.emitted += RATE * (1.0 + float(outcome.accepted.mean()) - now.emitted)
        self._account.earn(outcome.seconds.total)
        if is_mixed and view.num_prefills > 2 + view.num_rows**0.5:
            return  # a burst of prompts says nothing about lengths
        if is_mixed:
            rate = RATE if now.prefill_tokens else 1.0
            now.prefill_tokens += rate * (view.prefill_tokens - now.prefill_tokens)
        self._times.observe(size, int(outcome.verified.max()), view, outcome.seconds.target)

    def _tokens(
        self, view: BatchView, estimates: Estimates, drafter: np.ndarray, caps: np.ndarray
    ) -> np.ndarray:
        """Return the expected (weighted) tokens of a step by length: float [K + 1]."""
        is_drafted = np.arange(estimates.max_draft_tokens) < caps[:, None]
        gained = view.weights @ (estimates.survival_of(drafter) * is_drafted)
        return float(view.weights.sum()) + np.append(0.0, gained.cumsum())

    def _seconds(
        self,
        view: BatchView,
        estimates: Estimates,
        size: int,
        lengths: list[int],
        emitted: np.ndarray,
    ) -> np.ndarray:
        """Return the seconds of the target's pass with each length: float [n]. emitted: float [n],
        tokens of a row."""
        now, alone = self._sizes[size], view.without_prefill()
        self._times.use(estimates.latency)
        if not any(each.kept_passes for each in estimates.drafters):
            return self._times.seconds(size, lengths, alone, view.prefill_tokens)
        plain = self._times.seconds(size, lengths, alone, 0.0)
        if not now.prefill_tokens:
            return plain
        beside = self._times.seconds(size, lengths, alone, now.prefill_tokens)
        share = np.minimum(now.mixed * emitted / now.emitted, 1.0)
        return plain + share * np.maximum(beside - plain, 0.0)

    def _trial(
        self,
        now: _Size,
        size: int,
        lengths: list[int],
        tokens: np.ndarray,
        seconds: np.ndarray,
        best: int,
    ) -> int:
        """Return the place of the length of this step: the best one, or one to try."""
        now.num_steps += 1
        others = sorted((j for j in range(len(lengths)) if j != best), key=lambda j: abs(j - best))
        last = {j: self._times.last_seen(size, lengths[j], now.mixed > 0.5) for j in others}
        unknown = [j for j in others if not last[j] and lengths[j] not in now.tried]
        chosen, losses = best, seconds - tokens * (seconds[best] / tokens[best])
        if unknown and now.num_steps >= GAP // 2:
            chosen = unknown[0]
            now.tried.add(lengths[chosen])
        elif now.num_steps >= GAP:
            oldest = sorted(others, key=last.__getitem__)
            chosen = next((j for j in oldest if self._account.pay(float(losses[j]))), best)
        now.num_steps *= chosen == best
        return chosen
