"""Learning from finished steps: step times, until a controller can be made of them, and then its
estimates."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from smartspec.control import DrafterSpec, LatencyModel, Plan, SafeController, StepSeconds
from smartspec.vllm_plugin.costs.steps import TRIAL_STEPS, StepCosts
from smartspec.vllm_plugin.step.decision import EmittedTokens, Step, make_outcome

# Steps that are counted together. After a pass of the model the counting code is no longer in the
# processor's caches, and to fetch it takes longer than to run it.
REPORT_STEPS = 16
KEPT_PASSES = 1  # of a draft model: vLLM runs it in every step, also where no draft is wanted
OnSteps = Callable[[list[tuple[Step, EmittedTokens]], SafeController | None], None]


class Learner:
    """The learner of one scheduler. controller: None as long as the first steps try lengths.

    make_controller: makes it from a cost model. latency: the first cost model, None to learn it
    from the first steps. has_late_drafts: true if a step is over once its tokens are there, before
    its drafts are made, as with vLLM's V2 runner (0.32: v1/worker/gpu/model_runner.py,
    sample_tokens). The next step then takes longer for them. on_steps: called with finished steps
    and with the controller, if there is one, every few steps, and before vLLM waits for requests.
    on_costs: called with the cost model of all steps, at decoding step 64, 128, 256, ... or soon
    after.
    """

    def __init__(
        self,
        drafter: DrafterSpec,
        make_controller: Callable[[LatencyModel], SafeController],
        latency: LatencyModel | None,
        *,
        on_steps: OnSteps,
        on_costs: Callable[[LatencyModel], None],
        has_late_drafts: Callable[[], bool],
    ):
        self._drafter, self.make_controller, self.latency = drafter, make_controller, latency
        self.controller = None if latency is None else make_controller(latency)
        self.costs = StepCosts(drafter.has_passes)
        self._on_steps, self._on_costs = on_steps, on_costs
        self._next_fit = 2 * TRIAL_STEPS
        self._has_late_drafts, self._last_length = has_late_drafts, 0
        self._report_queue: list[tuple[Step, EmittedTokens]] = []

    def learn(self, step: Step, tokens: EmittedTokens) -> None:
        """Learn from a step that is over."""
        self._report_queue.append((step, tokens))
        step.timed_length = self._last_length if self._has_late_drafts() else step.draft_length
        self._last_length = step.draft_length
        if step.decision is not None and step.decision.cut_off is None:
            step.decision = step.decision.select_rows(step.output.num_scheduled_tokens)
        plan = None if step.decision is None else step.decision.plan
        if plan is None or plan.view is None or self.controller is None:
            return
        self.controller.learn(plan, make_outcome(step, tokens, self._split(step)))
        step.predicted_seconds = self.controller.predicted_seconds
        step.is_overruled = plan.reason is not None

    def end(self, number: int) -> None:
        """Forget the request of this number, which has ended."""
        if self.controller is not None:
            self.controller.end(number)

    @property
    def has_news(self) -> bool:
        """True if there are enough steps for a report."""
        return self.controller is None or len(self._report_queue) >= REPORT_STEPS

    def report(self) -> None:
        """Count the steps since the last report. At times the cost model is fitted to all steps."""
        for step, tokens in self._report_queue:
            self._note_costs(step, tokens)
        self._on_steps(self._report_queue, self.controller)
        self._report_queue.clear()
        if self.controller is None and self.costs.is_complete:
            self.latency = self.costs.fit()
            self.controller = self.make_controller(self.latency)
        elif self.costs.num_decoding >= self._next_fit:
            # The controller goes on with the new model: there may be sizes it has guessed.
            self._next_fit = 2 * self.costs.num_decoding
            self.latency = self.costs.fit()
            self._on_costs(self.latency)
            if self.controller is not None:
                self.controller.use_latency(self.latency)

    def start_over(self) -> None:
        """Forget the steps since the last report."""
        self._report_queue.clear()

    def _split(self, step: Step) -> StepSeconds:
        """Split a measured time. Only the whole step can be timed, so draft passes get their
        predicted time: if a step takes longer, as beside prefill, that says nothing of drafts. Fits
        learn their cost, from steps that verify another length than they make."""
        host, decision = step.host_seconds, step.decision
        if not self._drafter.has_passes or not step.timed_length:
            return StepSeconds(draft=0.0, target=step.seconds - host, host=host)
        rows = decision.view.num_rows
        plan = Plan(np.full(rows, step.timed_length), np.zeros(rows, dtype=np.int64))
        verified = decision.column(step.verified)
        predicted = self.latency.predict(decision.view, plan, verified)
        if (draft := predicted.draft) >= step.seconds - host:  # the target's pass took time, too
            draft = (step.seconds - host) * draft / (draft + predicted.target)
        return StepSeconds(draft=draft, target=step.seconds - host - draft, host=host)

    def _note_costs(self, step: Step, tokens: EmittedTokens) -> None:
        """Note the cost of a step's size: steps of decoding requests alone, or of prefill alone.
        Steps of both count while there is no controller: under steady load there may be no
        others."""
        has_drafts = self._drafter.has_passes and step.num_decoding
        passes = max(step.timed_length - KEPT_PASSES, 0) if has_drafts else 0
        size = replace(step.size(tokens, passes), seconds=step.seconds - step.host_seconds)
        if self.controller is None or not (size.decoding and size.prefills):
            self.costs.add(size)
