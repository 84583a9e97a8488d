"""Between vLLM's scheduler and the controller: it decides before a step, and learns from it while the next one runs.

vLLM makes the drafts of a step at the end of the step before. With asynchronous scheduling it schedules a step before
the outcome of the last one is known. A decision is carried out by the first step whose drafts are as long as decided:
that of the decision, or the next one. Where a model drafts, lengths then hold until the outcome is known, and lengths
of captured graphs for two steps: decisions in every step brought nothing there, and take the scheduler's time.
"""

import time
from collections.abc import Callable

import numpy as np

from smartspec.control import (
    BatchView,
    Drafted,
    DrafterSpec,
    DrafterView,
    LatencyModel,
    Plan,
    SafeController,
    StepSeconds,
)
from smartspec.vllm_plugin import batch
from smartspec.vllm_plugin.callers import Callers, Columns
from smartspec.vllm_plugin.copying import COPYING, Followed
from smartspec.vllm_plugin.costs import TRIAL_STEPS, StepCosts, StepSize
from smartspec.vllm_plugin.decision import Decision, EmittedTokens, Step, outcome_of
from smartspec.vllm_plugin.drafting import OwnDrafters

# Methods whose drafts always have the configured length: a decision can save only their verification.
MODEL_FREE = ("ngram", "ngram_gpu", "suffix", "medusa", "custom_class")
# Steps that are counted together. After a pass of the model the counting code is no longer in the processor's caches,
# and to fetch it takes longer than to run it.
REPORT_STEPS = 16
KEPT_PASSES = 1  # of a draft model: vLLM runs it in every step, also where no draft is wanted
MAX_UNDER_WAY = 16  # steps that wait for their outcome; vLLM has two at a time


class Speculation:
    """Decides for one scheduler of vLLM.

    drafter: vLLM's, as the controller names it, or ours. controller: made from a cost model, as soon as there is one.
    latency: the first cost model, None to learn it from the first steps. tiers: all requests of a step share one of
    these lengths; None where lengths may differ.

    on_steps: called with finished steps and with the controller, if there is one. It is called every few steps, and
    before vLLM waits for requests. on_costs: called with the cost model of all steps, at decoding step 64, 128, 256,
    ... or soon after.
    """

    def __init__(
        self,
        scheduler,
        drafter: DrafterSpec | OwnDrafters,
        make_controller: Callable[[LatencyModel], SafeController],
        latency: LatencyModel | None,
        *,
        tiers: tuple[int, ...] | None = None,
        on_steps: Callable[[list[tuple[Step, EmittedTokens]], SafeController | None], None],
        on_costs: Callable[[LatencyModel], None],
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._scheduler = scheduler
        self._own = drafter if isinstance(drafter, OwnDrafters) else None
        self._drafter = drafter.specs[0] if isinstance(drafter, OwnDrafters) else drafter
        self._max_draft_tokens = scheduler.num_spec_tokens
        self._tiers = tiers
        self._make_controller = make_controller
        self._latency = latency
        self._controller = None if latency is None else make_controller(latency)
        self._on_steps, self._on_costs, self._clock = on_steps, on_costs, clock
        self._costs = StepCosts(self._drafter.has_passes)
        self._next_fit = 2 * TRIAL_STEPS
        self._callers = Callers(self._max_draft_tokens)
        self._followed = Followed() if self._drafter.name in COPYING else None
        self._ended: list[str] = []  # requests that have ended since the last step was scheduled
        self._to_forget: list[str] = []  # those that no decision is about
        self._decision: Decision | None = None  # the last one
        self._is_open = False  # whether no step has carried it out yet
        self._is_held = False  # whether the next step is to keep it
        self._last_draft_length = 0  # draft tokens made in the last scheduled step
        self._steps: dict[int, Step] = {}  # scheduled and not finished, by identity of their output
        self._last_completion: float | None = None  # None while vLLM waits for requests
        self._unlearned: list[tuple[Step, EmittedTokens]] = []
        self._unreported: list[tuple[Step, EmittedTokens]] = []

    def before_schedule(self) -> None:
        """Make a decision, unless the last one is under way. Cut drafts to what is to be verified."""
        rows = batch.decoding(self._scheduler)
        is_held = self._drafter.has_passes and any(step.decision for step in self._steps.values())
        is_held, self._is_held = is_held or self._is_held, False
        if not self._is_open and not is_held and (rows or len(self._scheduler.running) or len(self._scheduler.waiting)):
            self._decision, self._is_open, self._is_held = self._decide(rows), True, self._tiers is not None
            lengths = self._decision.lengths.tolist()
        elif self._decision is not None:
            lengths = self._lengths_of(rows)
        else:
            return
        for request, length in zip(rows, lengths, strict=True):
            if len(request.spec_token_ids) > length:  # a copy: asynchronous scheduling shares one list of placeholders
                request.spec_token_ids = request.spec_token_ids[:length]

    def after_schedule(self, output) -> None:
        """Say how many tokens to draft, and note the step. Before vLLM counts its tokens as computed."""
        self._ended.extend(output.finished_req_ids)
        if self._decision is None or not output.total_num_scheduled_tokens:
            return
        output.num_spec_tokens_to_schedule = self._decision.draft_length
        drafts = output.scheduled_spec_decode_tokens
        verified = dict(zip(drafts, map(len, drafts.values()), strict=True))
        num_decoding, prefill, context_tokens = self._fed(output.num_scheduled_tokens, verified)
        has_drafts = not self._drafter.has_passes or self._last_draft_length >= self._decision.draft_length
        is_carried_out = self._is_open and has_drafts
        self._is_open = self._is_open and not has_drafts
        self._steps[id(output)] = Step(
            output=output,
            scheduled_at=self._clock(),
            prefill=prefill,
            verified=verified,
            num_verified=sum(verified.values()),
            num_decoding=num_decoding,
            context_tokens=context_tokens,
            draft_length=self._decision.draft_length,
            decision=self._decision if is_carried_out else None,
            ended=tuple(self._ended),
        )
        self._ended.clear()
        if len(self._steps) > MAX_UNDER_WAY:
            self._lose_oldest()
        self._last_draft_length = self._decision.draft_length

    def _fed(self, scheduled: dict[str, int], verified: dict[str, int]) -> tuple[int, batch.Prefill, int]:
        """For a scheduled step: requests that decode, its prefill, and the tokens in the KV of all its requests."""
        decision, requests = self._decision, self._scheduler.requests
        assert decision is not None, "a step without a decision is not noted"
        if self._is_open and tuple(scheduled) == decision.names:  # exactly the requests of the decision
            return len(scheduled), batch.NO_PREFILL, decision.view.total_context_tokens
        num_fed = sum(scheduled.values()) - sum(verified.values())
        if not self._is_open and num_fed == len(scheduled):  # one token each
            return num_fed, batch.NO_PREFILL, sum([requests[name].num_computed_tokens for name in scheduled])
        fed = {name: n - verified.get(name, 0) for name, n in scheduled.items()}
        decoding = set(decision.names) & set(fed) if self._is_open else {n for n in fed if fed[n] == 1}
        prefill = batch.Prefill.of([(requests[n].num_computed_tokens, fed[n]) for n in fed if n not in decoding])
        return len(decoding), prefill, sum(requests[name].num_computed_tokens for name in fed)

    def while_running(self) -> None:
        """A step has been handed to the workers: learn from those before it, as no step waits for that now."""
        for step, outcome in self._unlearned:
            self._learn(step, outcome)
        self._unlearned.clear()
        if self._controller is None or len(self._unreported) >= REPORT_STEPS:
            self._report()
        for name in self._to_forget:
            number = self._callers.forget(name)
            if self._own is not None:
                self._own.end(name)
            if number is not None and self._controller is not None:
                self._controller.end(number)
        self._to_forget.clear()

    def before_update(self, output, model_output) -> tuple[Step, EmittedTokens] | None:
        """A step has finished: what came of it, None for a step that fed nothing."""
        if id(output) not in self._steps:
            return None
        while next(iter(self._steps)) != id(output):  # vLLM finishes steps in order
            self._lose_oldest()
        step = self._steps.pop(id(output))
        now = self._clock()
        began = step.scheduled_at if self._last_completion is None else self._last_completion
        step.seconds = max(now - began, 1e-9)
        self._last_completion = now
        return step, EmittedTokens.of(step, model_output, self._scheduler.requests)

    def after_update(self, finished: tuple[Step, EmittedTokens] | None) -> None:
        """Keep what the next decision does not need for later, once vLLM has applied the output of a step."""
        if finished is not None:
            self._unlearned.append(finished)
            step, outcome = finished
            if step.decision is not None and self._followed is not None:
                self._followed.observe(step.decision, step, outcome)
            if self._own is not None and step.decision is not None and step.decision.drafter is not None:
                step.free_tests = self._own.observe(step.decision.drafter, step.verified, outcome.tokens)
        is_idle = not self._scheduler.has_unfinished_requests()
        if is_idle or self._controller is None:  # the steps that try lengths use the number of measured steps
            self.while_running()
        if is_idle:
            self._last_completion = None
            self._report()

    def start_over(self) -> None:
        """Begin anew after a failure in the middle of a step. Steps that wait for an outcome are dropped. What is known
        about time and acceptance is kept. Requests count as new."""
        self._steps.clear()
        for waiting in (self._unlearned, self._unreported, self._ended, self._to_forget):
            waiting.clear()
        self._decision, self._is_open, self._last_draft_length, self._last_completion = None, False, 0, None
        self._is_held = False
        self._followed = None if self._followed is None else Followed()
        if self._own is not None:
            self._own.start_over()
        for number in self._callers.forget_all():
            if self._controller is not None:
                self._controller.end(number)

    def _lose_oldest(self) -> None:
        """Drop the oldest step and the decision that it carries out."""
        self._to_forget += self._steps.pop(next(iter(self._steps))).ended

    def _learn(self, step: Step, tokens: EmittedTokens) -> None:
        self._unreported.append((step, tokens))
        self._to_forget += step.ended
        plan = None if step.decision is None else step.decision.plan
        if plan is None or plan.view is None or self._controller is None:
            return
        self._controller.learn(plan, outcome_of(step, tokens, self._split(step)))
        step.predicted_seconds = self._controller.predicted_seconds
        step.is_overruled = plan.reason is not None

    def _report(self) -> None:
        for step, _ in self._unreported:
            self._note_costs(step)
        self._on_steps(self._unreported, self._controller)
        self._unreported.clear()
        if self._controller is None and self._costs.are_known:
            self._latency = self._costs.fit()
            self._controller = self._make_controller(self._latency)
        elif self._costs.num_decoding >= self._next_fit:
            self._next_fit = 2 * self._costs.num_decoding
            self._refit()

    def _refit(self) -> None:
        """Fit the cost model to all steps. The controller goes on with it: there may be sizes it has guessed."""
        self._latency = self._costs.fit()
        self._on_costs(self._latency)
        if self._controller is not None:
            self._controller.use_latency(self._latency)

    def _lengths_of(self, rows: list) -> list[int]:
        """Lengths decided for these requests. Requests without a decision have no drafts, or those of the tier."""
        assert self._decision is not None
        by_name = dict(zip(self._decision.names, self._decision.lengths.tolist(), strict=True))
        undecided = self._decision.draft_length if self._tiers else 0
        return [by_name.get(request.request_id, undecided) for request in rows]

    def _decide(self, rows: list) -> Decision:
        began = self._clock()
        columns = self._callers.columns(rows)
        prefill = batch.expected_prefill(self._scheduler, len(rows))
        view = self._view(rows, columns, prefill)
        plan = None
        if self._controller is None:
            view = view.queried(True)
            lengths = (0, *self._tiers) if self._tiers else range(self._max_draft_tokens + 1)
            wanted = np.minimum(view.draft_lengths.max(axis=0), self._costs.trial_length(lengths))
            verified, drafter = wanted, view.draft_lengths.argmax(axis=0)
        else:
            plan = self._controller.plan(view)
            view = view.queried(False) if plan.view is None else plan.view
            wanted, drafter = np.asarray(plan.lengths), np.asarray(plan.drafter)
            verified = self._controller.cut(plan, Drafted(wanted))
        if self._own is not None:
            self._own.place(self._scheduler, drafter, verified)
        cut_off = None if self._drafter.has_passes else _cut_off(rows, verified.tolist())
        return Decision(
            columns.names,
            view,
            prefill,
            verified,
            self._draft_length(rows, wanted),
            cut_off,
            plan,
            drafter if self._own is not None else None,
            self._clock() - began,
        )

    def _draft_length(self, rows: list, wanted: np.ndarray) -> int:
        if not self._drafter.has_passes:
            return self._max_draft_tokens
        # Prefill alone says nothing about lengths: requests begin to decode with what was decided last.
        return int(wanted.max()) if rows else self._last_draft_length

    def _view(self, rows: list, columns: Columns, prefill: batch.Prefill) -> BatchView:
        scheduler = self._scheduler
        context_tokens = np.array([request.num_computed_tokens for request in rows], dtype=np.int64)
        useful = batch.longest_useful(rows, context_tokens, scheduler.max_model_len, until_they_end=not self._tiers)
        caps = np.minimum(np.minimum(columns.max_draft_tokens, self._max_draft_tokens), useful)
        budget = min(scheduler.max_num_scheduled_tokens, batch.free_kv_tokens(scheduler)) - len(rows)
        return BatchView(
            request_ids=columns.numbers,
            context_tokens=context_tokens,
            max_draft_tokens=caps,
            **self._drafts(rows, columns.names, caps),
            draft_token_budget=max(budget, 0),
            num_waiting=scheduler.get_request_counts()[1],
            now=self._clock(),
            weights=columns.weights,
            class_ids=columns.class_ids,
            **vars(prefill),
        )

    def _drafts(self, rows: list, names: tuple[str, ...], caps: np.ndarray) -> dict:
        """What can be drafted, or how it is found. caps: int [R], longest draft of each."""
        if self._own is not None:
            return {"queries": self._own.queries(rows, caps, self._scheduler.max_model_len)}
        lengths = caps
        if not self._drafter.has_passes:  # they exist already
            lengths = np.minimum(caps, np.array([len(request.spec_token_ids) for request in rows], dtype=np.int64))
        return {"drafters": (DrafterView(lengths, None if self._followed is None else self._followed.of(names)),)}

    def _split(self, step: Step) -> StepSeconds:
        """Splits a measured time. Only the whole step can be timed, so draft passes get their predicted share."""
        if not self._drafter.has_passes or not step.draft_length or self._latency is None or step.decision is None:
            host = self._host_seconds(step)
            return StepSeconds(draft=0.0, target=step.seconds - host, host=host)
        rows = step.decision.view.num_rows
        plan = Plan(np.full(rows, step.draft_length), np.zeros(rows, dtype=np.int64))
        verified = np.array([step.verified.get(name, 0) for name in step.decision.names], dtype=np.int64)
        predicted = self._latency.predict(step.decision.view, plan, verified)
        draft = step.seconds * predicted.draft / predicted.total
        return StepSeconds(draft=draft, target=step.seconds - draft, host=0.0)

    def _host_seconds(self, step: Step) -> float:
        """Of a step: what its decision took, where it may search for drafts."""
        return 0.0 if self._own is None or step.decision is None else min(step.decision.host_seconds, step.seconds)

    def _note_costs(self, step: Step) -> None:
        """Steps of decoding requests alone, or of prefill alone, tell what a size costs."""
        fed = step.num_decoding + step.num_verified
        if not step.prefill.num_prefills:
            passes = max(step.draft_length - KEPT_PASSES, 0) if self._drafter.has_passes else 0
            size = StepSize(step.num_decoding, fed, fed, passes)
        elif not step.num_decoding:
            size = StepSize(step.prefill.num_prefills, step.prefill.prefill_tokens, step.prefill.num_prefills)
        else:
            return
        self._costs.add(size, step.context_tokens, step.seconds - self._host_seconds(step))


def _cut_off(rows: list, planned: list[int]) -> np.ndarray:
    """See Decision."""
    drafts = [request.spec_token_ids for request in rows]
    cut_off = [draft[n] if n < len(draft) else -1 for draft, n in zip(drafts, planned, strict=True)]
    return np.array(cut_off, dtype=np.int64)
