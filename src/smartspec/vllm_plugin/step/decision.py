"""A decision of the controller, from the step in which it is made to the step whose outcome the
controller learns."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np

from smartspec.control import BatchView, Drafted, DrafterView, FreeTests, Outcome, Plan, StepSeconds
from smartspec.observation.records import StepSize
from smartspec.vllm_plugin.step.batch import Prefill


@dataclass(frozen=True)
class Decision:
    """A decision about the requests that decode in a step."""

    names: tuple[str, ...]  # vLLM's ids of the rows of view
    view: BatchView
    prefill: Prefill  # that view expects
    lengths: np.ndarray  # int [R], draft tokens to verify
    draft_length: int  # draft tokens that the drafter is to make for all
    # By row, the first draft token that is there and not verified, -1 if unknown; None where drafts
    # are made in passes.
    cut_off: np.ndarray | None
    plan: Plan | None = None  # the controller's, if there is one
    drafter: np.ndarray | None = None  # int [R], whose draft each row gets
    host_seconds: float = 0.0  # that the decision took where it searches for drafts, else 0

    @cached_property
    def shortest(self) -> int:
        """The least length that a draft is cut to."""
        return min(self.draft_length, int(self.lengths.min(initial=self.draft_length)))

    def select_rows(self, names: Container[str]) -> "Decision":
        """Return the decision about its rows of these names, where drafts are made in passes."""
        rows = [row for row, name in enumerate(self.names) if name in names]
        if len(rows) == len(self.names):
            return self
        view = _select_view(self.view, rows)
        plan = self.plan
        if plan is not None and plan.view is not None:
            plan = replace(plan, view=view, lengths=plan.lengths[rows], drafter=plan.drafter[rows])
        some = tuple([self.names[row] for row in rows])
        return replace(self, names=some, view=view, lengths=self.lengths[rows], plan=plan)


@dataclass
class Step:
    """A step that vLLM has scheduled."""

    output: Any  # vLLM's SchedulerOutput
    start: float  # seconds of the clock at which it was scheduled
    prefill: Prefill
    verified: Mapping[str, int]  # draft tokens by request
    num_verified: int  # draft tokens of all requests
    num_decoding: int  # requests
    context_tokens: int  # in the KV of all its requests
    draft_length: int  # draft tokens made in it
    decision: Decision | None = None  # that it carries out, None if another step does that
    # requests that have ended between the schedule of the step before and its own
    ended_requests: tuple[str, ...] = ()
    # The rest is set once the step has finished.
    seconds: float = 0.0
    host_seconds: float = 0.0  # of them, for a decision that searches for drafts
    timed_length: int = 0  # of the drafts that were made in these seconds
    predicted_seconds: float | None = None  # None without a prediction
    is_overruled: bool = False  # true if its lengths differ from those of the policy's rule alone
    free_tests: tuple[FreeTests, ...] = ()  # by drafter, where drafters of ours were queried

    def size(self, tokens: "EmittedTokens", passes: int) -> StepSize:
        """Return what the step's time depends on, with that time. passes: of a draft model."""
        prefill = self.prefill
        return StepSize(
            seconds=self.seconds,
            requests=self.num_decoding + prefill.num_prefills,
            decoding=self.num_decoding,
            context_tokens=self.context_tokens,
            fed_tokens=self.num_decoding + self.num_verified + prefill.prefill_tokens,
            verified_tokens=self.num_verified,
            emitted_tokens=tokens.num_given,
            prefills=prefill.num_prefills,
            prefill_tokens=prefill.prefill_tokens,
            passes=passes,
        )


@dataclass(frozen=True)
class EmittedTokens:
    """The outcome of a step, by request, before vLLM cuts answers at a stop or at max_tokens."""

    emitted: Mapping[str, int]  # number of tokens, at least one, of requests whose output counts
    # these tokens, where they are compared
    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # number of draft tokens that broke a grammar
    invalid: Mapping[str, int] = field(default_factory=dict)
    num_given: int = 0  # tokens that callers are given, of all requests

    @property
    def num_accepted(self) -> int:
        """The number of accepted draft tokens, as vLLM counts them: every request emits one token
        more than that."""
        return sum(self.emitted.values()) - len(self.emitted)

    def with_given(self, outputs: Mapping) -> "EmittedTokens":
        """Return the same with the tokens in vLLM's outputs for its front ends."""
        return replace(self, num_given=tokens_given(outputs))

    @staticmethod
    def of(step: Step, model_output, requests: Mapping) -> "EmittedTokens":
        """Return the outcome in the model's output, before vLLM applies it to its requests and
        shortens it. Requests that were aborted or preempted meanwhile are left out."""
        sampled: Sequence = model_output.sampled_token_ids
        rows = model_output.req_id_to_index.items() if sampled else ()
        emitted = {
            name: n
            for name, row in rows
            if (n := len(sampled[row]))
            and (request := requests.get(name))
            and not request.num_stale_output_tokens
        }
        tokens = {}
        if step.decision is not None and step.decision.cut_off is not None:  # they are compared
            tokens = {name: tuple(sampled[row]) for name, row in rows if name in emitted}
        return EmittedTokens(emitted, tokens, step.output.num_invalid_spec_tokens or {})


def tokens_given(outputs: Mapping) -> int:
    """Return the tokens in the outputs of a step, by front end, as vLLM's update_from_output
    returns them."""
    return sum([len(each.new_token_ids) for some in outputs.values() for each in some.outputs])


def _select_view(view: BatchView, rows: list[int]) -> BatchView:
    columns = ("request_ids", "context_tokens", "row_caps", "weights", "class_ids")
    drafters = tuple([DrafterView(drafter.lengths[rows]) for drafter in view.drafters])
    return replace(view, drafters=drafters, **{name: getattr(view, name)[rows] for name in columns})


def make_outcome(step: Step, tokens: EmittedTokens, seconds: StepSeconds) -> Outcome:
    """Return the controller's record of the outcome of the step that carried out a decision."""
    decision = step.decision
    assert decision is not None, "the step carries out no decision"
    # Most steps are as expected. Then the same object is kept, with its cached values.
    view = (
        decision.view
        if step.prefill == decision.prefill
        else replace(decision.view, **vars(step.prefill))
    )
    verified = _column(decision, step.verified)
    emitted = _column(decision, tokens.emitted)
    valid = (
        np.maximum(verified - _column(decision, tokens.invalid), 0) if tokens.invalid else verified
    )
    accepted = np.minimum(np.maximum(emitted - 1, 0), valid)
    drafted = verified
    if decision.cut_off is None:  # a model makes drafts
        drafted = np.maximum(step.draft_length, verified)
    return Outcome.of(
        view,
        Plan(
            drafted, np.where(drafted > 0, 0 if decision.drafter is None else decision.drafter, -1)
        ),
        Drafted(drafted),
        verified,
        accepted,
        seconds,
        tested=np.where(emitted > 0, np.minimum(valid, accepted + 1), 0),
        num_emitted=min(tokens.num_given, view.num_rows + view.num_prefills + int(accepted.sum())),
        free_tests=step.free_tests or _free_tests(decision, tokens, verified, accepted),
    )


def _free_tests(
    decision: Decision, tokens: EmittedTokens, verified: np.ndarray, accepted: np.ndarray
) -> tuple[FreeTests, ...]:
    """Where all verified tokens were accepted, the target's next token tells whether the draft's
    next was right."""
    if decision.cut_off is None or len(decision.view.drafters) != 1:
        return ()
    newest = _column(decision, {name: some[-1] for name, some in tokens.tokens.items()}, missing=-1)
    is_known = (
        (decision.cut_off >= 0)
        & (newest >= 0)
        & (accepted == verified)
        & (verified == decision.lengths)
    )
    tests = FreeTests(
        position=np.where(is_known, verified, 0),
        tested=is_known.astype(np.int64),
        matched=(is_known & (newest == decision.cut_off)).astype(np.int64),
    )
    return (tests,)


def _column(decision: Decision, values: Mapping[str, int], missing: int = 0) -> np.ndarray:
    column = map(values.get, decision.names, repeat(missing))
    return np.fromiter(column, np.int64, len(decision.names))
