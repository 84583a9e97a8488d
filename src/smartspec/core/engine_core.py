"""The step: scheduling, drafting, verification and learning meet here and nowhere else."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from smartspec.control import BatchView, Drafted, DrafterQuery, Outcome, Plan
from smartspec.core.batch import (
    Batch,
    Draft,
    RequestOutput,
    StepOutput,
    StepResult,
    Verification,
    no_tokens,
    shorten,
)
from smartspec.core.draft_columns import drafted_of, lengths_of, node_tests, num_compared
from smartspec.core.request import Request
from smartspec.core.scheduler import Scheduler


class Executor(Protocol):
    """The part that computes: the live engine runs kernels, the simulator computes time and
    acceptance."""

    def begin_step(self, batch: Batch, now: float) -> tuple[DrafterQuery, ...]:
        """Carry out the batch's memory operations; how to find out what each drafter can draft. The
        step began at now."""

    def draft(self, batch: Batch, plan: Plan) -> tuple[Draft, ...]:
        """One draft per decoding request, by its drafter and at most plan.lengths[i] long."""

    def verify(self, batch: Batch, drafts: tuple[Draft, ...]) -> StepResult:
        """One target pass over prefill chunks, newest tokens and drafts; lossless acceptance."""

    def release(self, request_id: int) -> None:
        """Drop whatever drafters remember of a request."""


class Controller(Protocol):
    """The part that decides: see control.controller."""

    predicted_seconds: float | None

    def plan(self, view: BatchView) -> Plan: ...

    def cut(self, plan: Plan, drafted: Drafted) -> np.ndarray: ...

    def learn(self, plan: Plan, outcome: Outcome) -> None: ...

    def end(self, request_id: int) -> None: ...


class EngineCore:
    """Requests in, tokens out, one step at a time. Not thread safe: one thread owns it."""

    def __init__(self, scheduler: Scheduler, executor: Executor, controller: Controller):
        self.scheduler = scheduler
        self.executor = executor
        self.controller = controller

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises ValueError when it could never run (context or KV too small)."""
        self.scheduler.add(request)

    def abort(self, request_id: int) -> None:
        """End a request between two steps and give back everything it holds. Unknown ids are
        ignored."""
        if self.scheduler.remove(request_id) is not None:
            self._forget(request_id)

    def step(self, now: float) -> StepOutput:
        """Run one step over all running requests; an empty output if there is nothing to run.

        now: seconds on the executor's clock; the step's seconds count from there. A host that has
        been busy since the last step passes the end of what that one measured (its now +
        seconds.total): what the host did in between is then measured too, as host time of this
        step. A step that raises leaves its requests in the queue, to be computed anew or aborted;
        tokens it had already appended stay.
        """
        batch = Batch()
        try:
            batch = self.scheduler.schedule()
            return StepOutput() if batch.empty else self._run(batch, now)
        except BaseException:
            self.scheduler.start_over()
            self._forget_finished((*batch.decoding, *batch.prefill))
            raise

    def _run(self, batch: Batch, now: float) -> StepOutput:
        for request in (*batch.decoding, *batch.prefill):
            if request.first_step is None:
                request.first_step = now
        view = self.scheduler.view(batch, self.executor.begin_step(batch, now), now)
        plan = self.controller.plan(view)
        reserved = self.scheduler.reserve(batch, plan)
        drafts = self.executor.draft(batch, reserved)
        drafted = drafted_of(drafts, self.scheduler.max_draft_tokens)
        keep = self.controller.cut(reserved, drafted)
        self.scheduler.remember_drafts(batch, keep)
        verified = tuple(map(shorten, drafts, keep.tolist())) if drafted.lengths.any() else drafts
        result = self.executor.verify(batch, verified)
        outputs, num_kept = self._update(batch, result)
        outcome = _outcome(plan.view or view, reserved, drafted, verified, num_kept, result)
        self.controller.learn(plan, outcome)
        self._forget_finished(output.request for output in outputs)
        return _step_output(outputs, outcome, self.controller.predicted_seconds)

    def _update(self, batch: Batch, result: StepResult) -> tuple[list[RequestOutput], np.ndarray]:
        """Append emitted tokens, stop, roll back; returns the outputs and how many tokens of each
        row were kept [R]."""
        outputs = [
            self._commit(request, 1 + verification.num_accepted, verification)
            for request, verification in zip(batch.decoding, result.decoding, strict=True)
        ]
        num_kept = np.array([len(output.new_token_ids) for output in outputs], dtype=np.int64)
        for request, found in zip(batch.prefill, result.prompt_logprobs, strict=False):
            request.prompt_logprobs.extend(found)
        chunks = zip(batch.prefill, batch.num_prefill_tokens, result.prefill, strict=True)
        for request, num_tokens, verification in chunks:
            if verification is None:
                request.num_computed_tokens += num_tokens
            else:
                outputs.append(self._commit(request, num_tokens, verification))
        return outputs, num_kept

    def _commit(
        self, request: Request, num_computed: int, verification: Verification
    ) -> RequestOutput:
        kept = request.append(verification.emitted_token_ids)
        if verification.error is not None:
            request.fail(verification.error, verification.is_callers)
        request.num_computed_tokens = min(
            request.num_computed_tokens + num_computed, request.num_tokens - 1
        )
        self.scheduler.settle(request)
        logprobs = verification.logprobs
        return RequestOutput(
            request=request,
            new_token_ids=tuple(kept),
            logprobs=None if logprobs is None else logprobs[: len(kept)],
            finish_reason=request.finish_reason,
            num_accepted=min(verification.num_accepted, len(kept)),
        )

    def _forget_finished(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request.finished:
                self._forget(request.request_id)

    def _forget(self, request_id: int) -> None:
        self.executor.release(request_id)
        self.controller.end(request_id)


def _outcome(
    view: BatchView,
    plan: Plan,
    drafted: Drafted,
    verified: tuple[Draft, ...],
    num_kept: np.ndarray,
    result: StepResult,
) -> Outcome:
    """num_kept: int [R], emitted tokens that were kept: a position after the last of them was not
    tested."""
    tests = None
    lengths = tested = accepted = no_tokens(view.num_rows)
    if any(verified):
        accepted = np.array([v.num_accepted for v in result.decoding], dtype=np.int64)
        lengths = lengths_of(verified)
        tested = np.minimum(np.minimum(lengths, accepted + 1), num_kept)
        accepted = np.minimum(accepted, num_kept)
    if drafted.parents is not None:
        comparable = np.array(list(map(num_compared, verified, result.decoding)), dtype=np.int64)
        tested = np.minimum(comparable, num_kept)
        tests = node_tests(verified, result.decoding, num_kept, drafted.parents.shape[1])
    num_emitted = num_kept.sum() + sum(
        len(v.emitted_token_ids) for v in result.prefill if v is not None
    )
    return Outcome.of(
        view,
        plan,
        drafted,
        lengths,
        accepted,
        result.seconds,
        tested=tested,
        num_emitted=int(num_emitted),
        free_tests=tuple(free.keep_known(num_kept) for free in result.free_tests),
        node_tests=tests,
        extras=result.extras,
    )


def _step_output(
    outputs: list[RequestOutput], outcome: Outcome, predicted_seconds: float | None
) -> StepOutput:
    verified = tuple(outcome.verified.tolist())
    return StepOutput(
        outputs=tuple(outputs),
        num_prefill_tokens=outcome.view.prefill_tokens,
        num_draft_tokens=sum(outcome.drafted.tolist()),
        num_verified_tokens=sum(verified),
        num_accepted_tokens=sum(outcome.accepted.tolist()),
        verified_lengths=verified,
        predicted_seconds=predicted_seconds,
        seconds=outcome.seconds,
    )
