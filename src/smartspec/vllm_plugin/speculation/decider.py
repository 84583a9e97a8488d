"""The decision about a step: vLLM's requests as a view of the controller, its plan, and the lengths
for vLLM."""

from collections.abc import Callable

import numpy as np

from smartspec.control import BatchView, Drafted, DrafterSpec, DrafterView
from smartspec.vllm_plugin.speculation.drafts import OwnDrafters
from smartspec.vllm_plugin.speculation.learner import Learner
from smartspec.vllm_plugin.step import batch
from smartspec.vllm_plugin.step.callers import Callers, Columns
from smartspec.vllm_plugin.step.decision import Decision, EmittedTokens, Step


class Decider:
    """The decider of one scheduler of vLLM, with its knowledge of requests. drafter, own: vLLM's
    drafter, and ours if they draft in its place. tiers: see
    Speculation. is_adaptive: see StepsUnderWay."""

    def __init__(
        self,
        scheduler,
        drafter: DrafterSpec,
        own: OwnDrafters | None,
        learner: Learner,
        tiers: tuple[int, ...] | None,
        is_adaptive: bool,
        clock: Callable[[], float],
    ):
        self._scheduler, self._drafter, self._learner = scheduler, drafter, learner
        self._max_draft_tokens, self._tiers, self._clock = scheduler.num_spec_tokens, tiers, clock
        self._is_adaptive = is_adaptive
        self.own = own
        self.callers = Callers(self._max_draft_tokens)

    def decide(self, rows: list, last_draft_length: int) -> Decision:
        """Decide about these requests, which decode in the next step. last_draft_length: of the
        step before."""
        start = self._clock()
        columns = self.callers.columns(rows)
        prefill = batch.expected_prefill(self._scheduler, len(rows))
        view = self._view(rows, columns, prefill)
        plan, controller = None, self._learner.controller
        if controller is None:
            view = view.queried(True)
            lengths = (0, *self._tiers) if self._tiers else range(self._max_draft_tokens + 1)
            lengths_to_draft = np.minimum(
                view.draft_lengths.max(axis=0), self._learner.costs.next_trial(lengths)
            )
            verified, drafter = lengths_to_draft, view.draft_lengths.argmax(axis=0)
        else:
            plan = controller.plan(view)
            view = view.queried(False) if plan.view is None else plan.view
            lengths_to_draft, drafter = np.asarray(plan.lengths), np.asarray(plan.drafter)
            verified = controller.cut(plan, Drafted(lengths_to_draft))
        if self.own is not None:
            self.own.place(self._scheduler, drafter, verified)
        draft_length = self._max_draft_tokens
        if self._drafter.has_passes:
            # Prefill alone says nothing about lengths: requests begin to decode with what was
            # decided last.
            draft_length = int(lengths_to_draft.max(initial=0)) if rows else last_draft_length
        if self._is_adaptive:  # vLLM's workers choose which drafts are verified
            verified = np.minimum(view.row_caps, draft_length)
        return Decision(
            columns.names,
            view,
            prefill,
            verified,
            draft_length,
            cut_off=None if self._drafter.has_passes else _cut_off(rows, verified.tolist()),
            plan=plan,
            drafter=None if self.own is None else drafter,
            host_seconds=0.0 if self.own is None else self._clock() - start,
        )

    def observe(self, step: Step, outcome: EmittedTokens) -> None:
        """Note what the next decision needs of a step that is over."""
        decision = step.decision
        if self.own is not None and decision is not None and decision.drafter is not None:
            step.free_tests = self.own.observe(decision.drafter, step.verified, outcome.tokens)

    def end(self, name: str) -> None:
        """Forget a request of vLLM that has ended."""
        number = self.callers.forget(name)
        if self.own is not None:
            self.own.end(name)
        if number is not None:
            self._learner.end(number)

    def start_over(self) -> None:
        """Forget all requests: they count as new."""
        if self.own is not None:
            self.own.start_over()
        for number in self.callers.forget_all():
            self._learner.end(number)

    def _view(self, rows: list, columns: Columns, prefill: batch.Prefill) -> BatchView:
        scheduler = self._scheduler
        context_tokens = np.array([request.num_computed_tokens for request in rows], dtype=np.int64)
        useful = batch.useful_lengths(
            rows, context_tokens, scheduler.max_model_len, has_end=not self._tiers
        )
        caps = np.minimum(np.minimum(columns.max_draft_tokens, self._max_draft_tokens), useful)
        budget = min(scheduler.max_num_scheduled_tokens, batch.free_kv_tokens(scheduler)) - len(
            rows
        )
        return BatchView(
            request_ids=columns.numbers,
            context_tokens=context_tokens,
            row_caps=caps,
            **self._drafts(rows, caps),
            draft_token_budget=max(budget, 0),
            num_waiting=scheduler.get_request_counts()[1],
            now=self._clock(),
            weights=columns.weights,
            class_ids=columns.class_ids,
            **vars(prefill),
        )

    def _drafts(self, rows: list, caps: np.ndarray) -> dict:
        """Return the drafts that exist, or queries for them. caps: int [R], longest draft of
        each."""
        if self.own is not None:
            return {"queries": self.own.queries(rows, caps, self._scheduler.max_model_len)}
        if self._drafter.has_passes:
            return {"drafters": (DrafterView(caps),)}
        lengths = np.array([len(request.spec_token_ids) for request in rows], dtype=np.int64)
        return {"drafters": (DrafterView(np.minimum(caps, lengths)),)}


def _cut_off(rows: list, planned: list[int]) -> np.ndarray:
    """Return the first draft token of each row that is not verified (see Decision.cut_off)."""
    drafts = [request.spec_token_ids for request in rows]
    cut_off = [draft[n] if n < len(draft) else -1 for draft, n in zip(drafts, planned, strict=True)]
    return np.array(cut_off, dtype=np.int64)
