"""Speculation between vLLM's scheduler and the controller: decisions, the steps that carry them
out, their outcomes.

Drafts that exist before a step are decided on right before it. Where a model alone drafts, a
decision says how many tokens it is to make, and how many of them are verified in the step after.
Such a decision is made for the next step while this one runs, so that no step waits for it. It is
carried out by the first step whose drafts are as long as decided. With asynchronous scheduling and
with captured graphs, every second step is decided: more decisions brought nothing there.
"""

import time
from collections.abc import Mapping

from smartspec.control import DrafterSpec
from smartspec.vllm_plugin.speculation.decider import Decider
from smartspec.vllm_plugin.speculation.drafts import OwnDrafters
from smartspec.vllm_plugin.speculation.learner import Learner
from smartspec.vllm_plugin.step import batch
from smartspec.vllm_plugin.step.adaptive import COSTS, COSTS_SPACING, cost_curves
from smartspec.vllm_plugin.step.decision import Decision, EmittedTokens, Step
from smartspec.vllm_plugin.step.under_way import StepsUnderWay


class Speculation:
    """The object that the scheduler calls. drafter: vLLM's, as the controller names it. own: ours,
    if they draft in its place. tiers: all requests of a step share one of these lengths; None where
    lengths may differ. cost_sizes: numbers of tokens whose costs are sent to vLLM's workers, where
    they choose the drafts that they verify; None where they do not."""

    def __init__(
        self,
        scheduler,
        drafter: DrafterSpec,
        own: OwnDrafters | None,
        learner: Learner,
        *,
        tiers: tuple[int, ...] | None = None,
        cost_sizes: tuple[int, ...] | None = None,
    ):
        self._scheduler, self._tiers, self._clock = scheduler, tiers, time.perf_counter
        self._is_ahead = drafter.has_passes
        self.learner = learner
        is_adaptive = cost_sizes is not None
        self.decider = Decider(
            scheduler, drafter, own, learner, tiers, is_adaptive, lambda: self._clock()
        )
        self._cost_sizes, self._steps_to_costs = cost_sizes, 0
        # requests that have ended since the last step was scheduled
        self._ended_requests: list[str] = []
        self._old_requests: list[str] = []  # those that no decision is about
        self._decision: Decision | None = None  # the last one
        self._is_open = False  # true until a step carries it out
        self._last_draft_length = 0  # draft tokens made in the last scheduled step
        self._steps = StepsUnderWay(
            scheduler, is_adaptive, lambda: self._clock(), self._forget_ends
        )
        self._learn_queue: list[tuple[Step, EmittedTokens]] = []

    def before_schedule(self) -> None:
        """Make a decision, unless that was done while the last step ran. Cut drafts to what is to
        be verified."""
        decision = self._decision if self._is_ahead else None
        if decision and self._tiers and self._last_draft_length <= decision.shortest:
            return  # no draft can be longer than decided: there is no need to look at requests
        rows = batch.decoding_requests(self._scheduler)
        is_new = decision is None and self._decide(rows)
        if self._decision is None:
            return
        lengths = self._decision.lengths.tolist() if is_new else self._lengths_of(rows)
        for request, length in zip(rows, lengths, strict=True):
            # a copy: asynchronous scheduling shares one list of placeholders
            if len(request.spec_token_ids) > length:
                request.spec_token_ids = request.spec_token_ids[:length]

    def after_schedule(self, output) -> None:
        """Tell vLLM the number of tokens to draft, and note the step, before vLLM counts its tokens
        as computed."""
        self._ended_requests.extend(output.finished_req_ids)
        if self._decision is None or not output.total_num_scheduled_tokens:
            return
        output.num_spec_tokens_to_schedule = self._decision.draft_length
        has_drafts = not self._is_ahead or self._last_draft_length >= self._decision.draft_length
        is_carried_out = self._is_open and has_drafts
        self._is_open = self._is_open and not has_drafts
        self._steps.add(
            output,
            self._decision.draft_length,
            self._decision if is_carried_out else None,
            tuple(self._ended_requests),
        )
        self._ended_requests.clear()
        self._last_draft_length = self._decision.draft_length
        if self._cost_sizes is not None:
            self._send_costs(output)

    def while_running(self) -> None:
        """Learn from earlier steps, and decide about the next one where a model makes its drafts. A
        step has been handed to the workers, so no step waits for this."""
        self._learn()
        newest = self._steps.newest
        is_decided = newest is not None and newest.decision is not None
        is_held = is_decided and (self._tiers or len(self._steps) > 1)
        if self._is_ahead and not self._is_open and not is_held:
            self._decide(batch.decoding_requests(self._scheduler))

    def before_update(self, output, model_output) -> tuple[Step, EmittedTokens] | None:
        """Return a finished step and its tokens, None for a step that fed nothing."""
        finished = self._steps.finish(output, model_output)
        if finished is not None:
            finished[0].seconds = max(finished[0].seconds, 1e-9)
        return finished

    def after_update(self, finished: tuple[Step, EmittedTokens] | None, outputs: Mapping) -> None:
        """Note a finished step, once vLLM has applied its output. Work that can wait is left for
        later."""
        if finished is not None:
            step, tokens = finished
            self._learn_queue.append((step, tokens.with_given(outputs)))
            self.decider.observe(step, tokens)
        is_idle = not self._scheduler.has_unfinished_requests()
        # the steps that try lengths use the number of measured steps
        if is_idle or self.learner.controller is None:
            self._learn()
        if is_idle:
            self._steps.pause()
            self.learner.report()

    def finish(self) -> None:
        """Stop, as speculation goes off for a while, or vLLM ends. Finished steps are counted, and
        steps that wait for an outcome are dropped. Requests stay known. Nothing is called before
        speculation is on again."""
        self._learn()
        self.learner.report()
        self._drop_steps()

    def forget_acceptance(self) -> None:
        """The target's weights have changed: forget how often drafts were accepted, not what steps
        cost."""
        self._learn()
        if self.learner.controller is not None:
            self.learner.controller.forget_acceptance()

    def note_ends(self, output) -> None:
        """Note requests that have ended, of a step that is scheduled while speculation pauses."""
        self._ended_requests.extend(output.finished_req_ids)

    def start_over(self) -> None:
        """Begin anew after a failure in the middle of a step. Steps that wait for an outcome are
        dropped. Knowledge of time and acceptance is kept. Requests count as new."""
        self._drop_steps()
        for queue in (self._learn_queue, self._ended_requests, self._old_requests):
            queue.clear()
        self.learner.start_over()
        self.decider.start_over()

    def _drop_steps(self) -> None:
        self._steps.drop_all()
        self._decision, self._is_open, self._last_draft_length = None, False, 0

    def _decide(self, rows: list) -> bool:
        """Decide about the next step, in which these requests decode. Return false where there is
        none."""
        if not rows and not len(self._scheduler.running) and not len(self._scheduler.waiting):
            return False
        self._decision, self._is_open = self.decider.decide(rows, self._last_draft_length), True
        return True

    def _lengths_of(self, rows: list) -> list[int]:
        """Return the lengths for these requests. Without a decision they have no drafts, or those
        of the tier."""
        by_name = dict(zip(self._decision.names, self._decision.lengths.tolist(), strict=True))
        default = self._decision.draft_length if self._tiers else 0
        return [by_name.get(request.request_id, default) for request in rows]

    def _send_costs(self, output) -> None:
        """Send costs with this step, every COSTS_SPACING steps, as soon as they are known."""
        view, latency = self._decision.view, self.learner.latency
        self._steps_to_costs -= 1
        if self._steps_to_costs > 0 or latency is None or not view.num_rows:
            return
        self._steps_to_costs = COSTS_SPACING
        depth, max_rows = self._decision.draft_length, self._scheduler.max_num_running_reqs
        setattr(output, COSTS, cost_curves(latency, view, depth, self._cost_sizes, max_rows))

    def _learn(self) -> None:
        for step, outcome in self._learn_queue:
            self._old_requests += step.ended_requests
            self.learner.learn(step, outcome)
        self._learn_queue.clear()
        if self.learner.has_news:
            self.learner.report()
        for name in self._old_requests:
            self.decider.end(name)
        self._old_requests.clear()

    def _forget_ends(self, step: Step) -> None:
        """Forget a step whose outcome never comes, but not which requests ended before it."""
        self._old_requests += step.ended_requests
