"""A decision of the controller, from the step it was asked in to the step whose outcome it is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from smartspec.control import BatchView, DraftPlan, FreeTests, StepFeedback, StepSeconds
from smartspec.vllm_plugin.batch import Prefill


@dataclass(frozen=True)
class Decision:
    """names: vLLM's ids of the rows of view, which expects prefill. lengths: int [R], draft tokens to verify.
    draft_length: draft tokens the drafter is to make for all. cut_off: by row, the first draft token that is there and
    not verified, -1 if unknown; None where drafts are made in passes."""

    names: tuple[str, ...]
    view: BatchView
    prefill: Prefill
    lengths: np.ndarray
    draft_length: int
    cut_off: np.ndarray | None


@dataclass
class Step:
    """A step that vLLM has scheduled. verified: draft tokens by request. decision: the one it carries out, None where
    that is left to a later step or was done by an earlier one. draft_length: draft tokens made in it. seconds: what it
    took, once it has finished."""

    output: object
    scheduled_at: float
    prefill: Prefill
    verified: Mapping[str, int]
    num_decoding: int
    context_tokens: int
    draft_length: int
    decision: Decision | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What came of a step. emitted: tokens by request, of those whose output counts; tokens: the newest of each.
    invalid: draft tokens that broke a grammar, by request."""

    emitted: Mapping[str, int]
    newest: Mapping[str, int]
    invalid: Mapping[str, int] = field(default_factory=dict)

    def num_accepted(self, step: Step) -> int:
        """Draft tokens that were accepted."""
        return sum(max(self.emitted.get(name, 0) - 1, 0) for name in step.verified)

    @staticmethod
    def of(step: Step, model_output, requests: Mapping) -> "Outcome":
        """From vLLM's output of the model, before vLLM has applied it to its requests. Requests that were aborted or
        preempted meanwhile are left out."""
        emitted, newest = {}, {}
        for name, index in model_output.req_id_to_index.items():
            request = requests.get(name)
            tokens = model_output.sampled_token_ids[index] if model_output.sampled_token_ids else ()
            if request is not None and len(tokens) and not request.num_stale_output_tokens:
                emitted[name], newest[name] = len(tokens), int(tokens[-1])
        return Outcome(emitted, newest, getattr(step.output, "num_invalid_spec_tokens", None) or {})


def feedback(step: Step, outcome: Outcome, seconds: StepSeconds) -> StepFeedback:
    """What the controller is told of the step that carried out its decision."""
    decision = step.decision
    assert decision is not None, "the step carries out no decision"
    # Most steps are what was expected; the same object keeps what was computed of it.
    view = decision.view if step.prefill == decision.prefill else replace(decision.view, **vars(step.prefill))
    verified = _column(decision, step.verified)
    emitted = _column(decision, outcome.emitted)
    valid = np.maximum(verified - _column(decision, outcome.invalid), 0) if outcome.invalid else verified
    accepted = np.minimum(np.maximum(emitted - 1, 0), valid)
    has_passes = decision.cut_off is None
    drafted = np.full(len(verified), step.draft_length) if has_passes else verified
    drafted = np.maximum(drafted, verified)
    return StepFeedback(
        view=view,
        plan=DraftPlan(drafted, np.where(drafted > 0, 0, -1)),
        drafted=drafted,
        verified=verified,
        tested=np.where(emitted > 0, np.minimum(valid, accepted + 1), 0),
        accepted=accepted,
        num_emitted=min(sum(outcome.emitted.values()), view.num_rows + view.num_prefills + int(accepted.sum())),
        seconds=seconds,
        free_tests=_free_tests(decision, outcome, verified, accepted),
    )


def _free_tests(
    decision: Decision, outcome: Outcome, verified: np.ndarray, accepted: np.ndarray
) -> tuple[FreeTests, ...]:
    """Where all verified tokens were accepted, the target's next token tells whether the draft's next was right."""
    if decision.cut_off is None:
        return ()
    newest = _column(decision, outcome.newest, missing=-1)
    is_known = (decision.cut_off >= 0) & (newest >= 0) & (accepted == verified) & (verified == decision.lengths)
    tests = FreeTests(
        position=np.where(is_known, verified, 0),
        tested=is_known.astype(np.int64),
        matched=(is_known & (newest == decision.cut_off)).astype(np.int64),
    )
    return (tests,)


def _column(decision: Decision, values: Mapping[str, int], missing: int = 0) -> np.ndarray:
    return np.array([values.get(name, missing) for name in decision.names], dtype=np.int64)
