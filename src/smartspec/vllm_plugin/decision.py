"""A decision of the controller, from the step in which it is made to the step whose outcome the controller learns."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat

import numpy as np

from smartspec.control import BatchView, Drafted, DrafterView, FreeTests, Outcome, Plan, StepSeconds
from smartspec.vllm_plugin.batch import Prefill


@dataclass(frozen=True)
class Decision:
    """names: vLLM's ids of the rows of view, which expects prefill. lengths: int [R], draft tokens to verify.
    draft_length: draft tokens the drafter is to make for all. cut_off: by row, the first draft token that is there and
    not verified, -1 if unknown; None where drafts are made in passes. plan: the controller's, if there is one. drafter:
    int [R], whose draft each row gets. host_seconds: that the decision took where it searches for drafts, else 0."""

    names: tuple[str, ...]
    view: BatchView
    prefill: Prefill
    lengths: np.ndarray
    draft_length: int
    cut_off: np.ndarray | None
    plan: Plan | None = None
    drafter: np.ndarray | None = None
    host_seconds: float = 0.0

    @property
    def needs_tokens(self) -> bool:
        """Whether the tokens of its outcome are compared with drafts."""
        return self.cut_off is not None or self.drafter is not None

    @cached_property
    def shortest(self) -> int:
        """The least that a draft is cut to."""
        return min(self.draft_length, int(self.lengths.min(initial=self.draft_length)))

    def of_rows(self, names: Container[str]) -> "Decision":
        """The decision about those of its rows that are named, where drafts are made in passes."""
        kept = [row for row, name in enumerate(self.names) if name in names]
        if len(kept) == len(self.names):
            return self
        view = _view_of_rows(self.view, kept)
        plan = self.plan
        if plan is not None and plan.view is not None:
            survival = None if plan.survival is None else plan.survival[kept]
            columns = {"lengths": plan.lengths[kept], "drafter": plan.drafter[kept], "survival": survival}
            plan = replace(plan, view=view, alternatives=list, **columns)
        some = tuple([self.names[row] for row in kept])
        return replace(self, names=some, view=view, lengths=self.lengths[kept], plan=plan)


@dataclass
class Step:
    """A step that vLLM has scheduled. verified: draft tokens by request; num_verified: of all of them. decision: the
    one it carries out, None if another step does that. draft_length: draft tokens made in it. ended: requests that had
    ended when it was scheduled, and not when the step before was.

    Set once it has finished: seconds, measured; timed_length, of the drafts that were made in these seconds;
    predicted_seconds, None without a prediction; is_overruled, whether its lengths differ from those of the policy's
    rule alone; free_tests, by drafter, where drafters of ours were
    queried."""

    output: object
    scheduled_at: float
    prefill: Prefill
    verified: Mapping[str, int]
    num_verified: int
    num_decoding: int
    context_tokens: int
    draft_length: int
    decision: Decision | None = None
    ended: tuple[str, ...] = ()
    seconds: float = 0.0
    timed_length: int = 0
    predicted_seconds: float | None = None
    is_overruled: bool = False
    free_tests: tuple[FreeTests, ...] = ()


@dataclass(frozen=True)
class EmittedTokens:
    """The outcome of a step. emitted: tokens by request, at least one, of those whose output counts. tokens: these
    tokens, where the decision needs them. invalid: draft tokens that broke a grammar, by request."""

    emitted: Mapping[str, int]
    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    invalid: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def num_emitted(self) -> int:
        """Tokens of all requests."""
        return sum(self.emitted.values())

    @property
    def num_accepted(self) -> int:
        """Draft tokens that were accepted: every request emits one token more than that."""
        return self.num_emitted - len(self.emitted)

    @staticmethod
    def of(step: Step, model_output, requests: Mapping) -> "EmittedTokens":
        """From the model's output, before vLLM applies it to its requests and shortens it. Requests that were aborted
        or preempted meanwhile are left out."""
        sampled: Sequence = model_output.sampled_token_ids
        rows = model_output.req_id_to_index.items() if sampled else ()
        emitted = {
            name: n
            for name, row in rows
            if (n := len(sampled[row])) and (request := requests.get(name)) and not request.num_stale_output_tokens
        }
        are_needed = step.decision is not None and step.decision.needs_tokens
        kept = {name: tuple(sampled[row]) for name, row in rows if name in emitted} if are_needed else {}
        return EmittedTokens(emitted, kept, getattr(step.output, "num_invalid_spec_tokens", None) or {})


def _view_of_rows(view: BatchView, kept: list[int]) -> BatchView:
    columns = ("request_ids", "context_tokens", "max_draft_tokens", "weights", "class_ids")
    drafters = tuple([DrafterView(drafter.lengths[kept]) for drafter in view.drafters])
    return replace(view, drafters=drafters, **{name: getattr(view, name)[kept] for name in columns})


def outcome_of(step: Step, tokens: EmittedTokens, seconds: StepSeconds) -> Outcome:
    """The outcome, for the controller, of the step that carried out its decision."""
    decision = step.decision
    assert decision is not None, "the step carries out no decision"
    # Most steps are as expected. Then the same object is kept, with its cached values.
    view = decision.view if step.prefill == decision.prefill else replace(decision.view, **vars(step.prefill))
    verified = _column(decision, step.verified)
    emitted = _column(decision, tokens.emitted)
    valid = np.maximum(verified - _column(decision, tokens.invalid), 0) if tokens.invalid else verified
    accepted = np.minimum(np.maximum(emitted - 1, 0), valid)
    drafted = verified
    if decision.cut_off is None:  # a model makes drafts, unless a row's is ours
        is_of_model = True if decision.drafter is None else decision.drafter == 0
        drafted = np.maximum(np.where(is_of_model, step.draft_length, 0), verified)
    return Outcome.of(
        view,
        Plan(drafted, np.where(drafted > 0, 0 if decision.drafter is None else decision.drafter, -1)),
        Drafted(drafted),
        verified,
        accepted,
        seconds,
        tested=np.where(emitted > 0, np.minimum(valid, accepted + 1), 0),
        num_emitted=min(tokens.num_emitted, view.num_rows + view.num_prefills + int(accepted.sum())),
        free_tests=step.free_tests or _free_tests(decision, tokens, verified, accepted),
    )


def _free_tests(
    decision: Decision, tokens: EmittedTokens, verified: np.ndarray, accepted: np.ndarray
) -> tuple[FreeTests, ...]:
    """Where all verified tokens were accepted, the target's next token tells whether the draft's next was right."""
    if decision.cut_off is None or len(decision.view.drafters) != 1:
        return ()
    newest = _column(decision, {name: some[-1] for name, some in tokens.tokens.items()}, missing=-1)
    is_known = (decision.cut_off >= 0) & (newest >= 0) & (accepted == verified) & (verified == decision.lengths)
    tests = FreeTests(
        position=np.where(is_known, verified, 0),
        tested=is_known.astype(np.int64),
        matched=(is_known & (newest == decision.cut_off)).astype(np.int64),
    )
    return (tests,)


def _column(decision: Decision, values: Mapping[str, int], missing: int = 0) -> np.ndarray:
    found = map(values.get, decision.names, repeat(missing))
    return np.fromiter(found, np.int64, len(decision.names))
