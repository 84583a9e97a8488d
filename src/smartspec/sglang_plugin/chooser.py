"""Chooses draft steps by goodput: step times are learned from the first steps, acceptance from
all."""

from dataclasses import replace

import numpy as np

from smartspec.control import (
    BatchView,
    Controller,
    Drafted,
    DrafterSpec,
    DrafterView,
    LatencyModel,
    Outcome,
    Plan,
    StepSeconds,
)
from smartspec.core.policy_names import parse_policy
from smartspec.vllm_plugin.costs.steps import TRIAL_STEPS, StepCosts, StepSize

# steps after which times count as unknowable, and SGLang's own policy decides
MAX_TRIALS = 8 * TRIAL_STEPS
# For which a decision holds: a decision in every step was no faster on the emulated GPU, and costs
# the host time.
DECISION_STEPS = 4
KEPT_PASSES = 1  # SGLang extends the drafter's KV after every step, with no steps too
DRAFTER = DrafterSpec("eagle", has_passes=True, kept_passes=KEPT_PASSES)


class Chooser:
    """candidates: all numbers of steps that SGLang has prepared, ascending. A step of n requests
    with k steps feeds the target n * (1 + k) tokens, and the drafter after it."""

    def __init__(self, candidates: tuple[int, ...]):
        self._longest = max(candidates)
        self._policy = f"uniform:{','.join(str(k) for k in candidates if k)}"
        self.costs, self._num_trials = StepCosts(has_passes=True), 0
        self._latency: LatencyModel | None = None
        self.controller: Controller | None = None
        self._next_fit = TRIAL_STEPS
        self._held = self._held_size = self._steps_left = 0

    def choose(
        self, batch_size: int, tiers: tuple[int, ...], now: float
    ) -> tuple[int | None, Plan | None]:
        """One of these tiers, ascending, with the plan that the outcome is learned by, if it is to
        be; None where SGLang's own policy is to choose."""
        if len(tiers) == 1:
            return tiers[0], None
        if self.controller is None:
            self._num_trials += 1
            return self.costs.next_trial(tiers) if self._num_trials <= MAX_TRIALS else None, None
        size = batch_size.bit_length()
        if self._steps_left and self._held in tiers and size == self._held_size:
            self._steps_left -= 1
            return self._held, None
        steps, plan = self._decide(batch_size, tiers, now)
        self._held, self._held_size, self._steps_left = steps, size, DECISION_STEPS - 1
        return steps, plan

    def _decide(self, batch_size: int, tiers: tuple[int, ...], now: float) -> tuple[int, Plan]:
        caps = np.full(batch_size, tiers[-1], dtype=np.int64)
        # SGLang does not say which requests these are: a place in the batch stands for one.
        places, no_context = np.arange(batch_size), np.zeros(batch_size, dtype=np.int64)
        plan = self.controller.plan(
            BatchView(places, no_context, caps, (DrafterView(caps),), now=now)
        )
        planned = int(plan.lengths.max(initial=0))
        steps = max((tier for tier in tiers if tier <= planned), default=tiers[0])
        if steps == planned or plan.view is None:
            return steps, plan
        lengths, drafter = np.full(batch_size, steps), np.full(batch_size, 0 if steps else -1)
        return steps, replace(
            plan,
            lengths=lengths,
            drafter=drafter,
            depths=None,
            settled=None,
            reason="SGLang has no such tier now",
        )

    def learn(
        self,
        batch_size: int,
        steps: int,
        plan: Plan | None,
        accepted: list[int],
        seconds: float | None,
    ) -> None:
        """Learn from a step that is over. accepted: draft tokens by request. seconds: None if
        unknown."""
        if seconds is not None:
            self.costs.add(
                StepSize(
                    seconds=seconds,
                    requests=batch_size,
                    decoding=batch_size,
                    context_tokens=0,  # unknown
                    fed_tokens=batch_size * (1 + steps),
                    verified_tokens=batch_size * steps,
                    emitted_tokens=0,
                    prefills=0,
                    prefill_tokens=0,
                    passes=max(steps - KEPT_PASSES, 0),
                )
            )
            self._fit()
        if self.controller is None or plan is None or plan.view is None:
            return
        verified = np.full(batch_size, steps)
        predicted = self._latency.predict(plan.view, plan, verified)
        draft = predicted.draft if seconds is None else min(predicted.draft, seconds)
        target = predicted.target if seconds is None else seconds - draft
        correct = np.minimum(np.array(accepted, dtype=np.int64), verified)
        measured = StepSeconds(draft=draft, target=target, host=0.0)
        self.controller.learn(
            plan, Outcome.of(plan.view, plan, Drafted(verified), verified, correct, measured)
        )

    def _fit(self) -> None:
        """Fit the cost model to all steps, less and less often."""
        if self.costs.num_decoding < self._next_fit:
            return
        self._next_fit, self._latency = 2 * self.costs.num_decoding, self.costs.fit()
        if self.controller is None:
            policy = parse_policy(self._policy, self._longest)
            self.controller = Controller(
                policy, self._longest, self._latency, drafters=(DRAFTER,), name=self._policy
            )
        else:
            self.controller.use_latency(self._latency)
