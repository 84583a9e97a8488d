"""Decision records: the view of a step, the decision about it, and the outcome.

One record explains a step to a person, and is enough to replay the step with any policy
(sim.replay). As text it is one line of JSON; a log of them begins with a header.
"""

import json
from dataclasses import dataclass, replace

import numpy as np

from smartspec.control.checks import outcome_problem, view_problem
from smartspec.control.log.json_fields import Fields, matrix_or_null
from smartspec.control.log.view_fields import columns_of, read_view, view_dict
from smartspec.control.records import BatchView, DrafterSpec, FreeTests, Outcome, Plan, StepSeconds

FORMAT = 2
_OUTCOME_COLUMNS = ("drafted", "verified", "tested", "accepted")
_FREE_COLUMNS = ("position", "tested", "matched")
_PREDICTED = ("goodput", "off_goodput", "predicted_seconds")
_PREFILL = ("num_prefills", "prefill_tokens", "prefill_context_tokens", "prefill_attended_tokens")


@dataclass(frozen=True)
class DecisionRecord:
    """The record of one step."""

    # with the view of the step; its plan is the part of the chosen one that was carried out
    outcome: Outcome
    lengths: np.ndarray  # int [R], of the plan that the policy chose
    drafter: np.ndarray  # int [R], the same
    goodput: float  # predicted (weighted) tokens per second of the tokens that were verified
    off_goodput: float  # predicted (weighted) tokens per second of no drafts at all
    predicted_seconds: float  # of the step
    survival: np.ndarray  # float [R, K], the estimates used, of the drafter of each row
    # why the planner's choice was not followed, see Plan; None where it was
    reason: str | None = None

    @property
    def view(self) -> BatchView:
        """The view of the step."""
        return self.outcome.view

    def summary(self) -> dict:
        """Return the record for people: short, JSON-able."""
        outcome = self.outcome
        return {
            "num_rows": self.view.num_rows,
            "prefill_tokens": self.view.prefill_tokens,
            "lengths": self.lengths.tolist(),
            "predicted_goodput": self.goodput,
            "predicted_goodput_off": self.off_goodput,
            "predicted_seconds": self.predicted_seconds,
            "reason": self.reason,
            "verified": outcome.verified.tolist(),
            "accepted": outcome.accepted.tolist(),
            "emitted": outcome.num_emitted,
            "measured_seconds": outcome.seconds.total,
        }

    def to_json(self) -> str:
        """Return one line, without its end. Values that all have their default are left out,
        estimates rounded."""
        outcome = self.outcome
        data = {"format": FORMAT, "now": self.view.now} | view_dict(self.view)
        data |= {"lengths": self.lengths.tolist(), "drafter": self.drafter.tolist()}
        data["plan_lengths"] = outcome.plan.lengths.tolist()
        if outcome.plan.width > 1 and outcome.plan.depths is not None:
            data |= {"width": int(outcome.plan.width), "depths": outcome.plan.depths.tolist()}
        data |= {name: getattr(self, name) for name in _PREDICTED}
        data |= {"survival": np.round(self.survival, 4).tolist(), "reason": self.reason}
        data |= {name: getattr(outcome, name).tolist() for name in _OUTCOME_COLUMNS}
        data["num_emitted"] = int(outcome.num_emitted)
        data["seconds"] = [*vars(outcome.seconds).values()]
        if any(free.tested.any() for free in outcome.free_tests):
            data["free_tests"] = columns_of(outcome.free_tests, _FREE_COLUMNS)
        if outcome.confidence is not None:
            data["confidence"] = matrix_or_null(outcome.confidence)
        if "divergence" in outcome.extras:
            data["divergence"] = matrix_or_null(outcome.extras["divergence"])
        if outcome.parents is not None:
            data |= {name: getattr(outcome, name).tolist() for name in ("parents", "node_tests")}
        return json.dumps(data, allow_nan=False, separators=(",", ":"))

    @staticmethod
    def from_json(text: str, line: int | None = None) -> "DecisionRecord":
        """Return the inverse of to_json. ValueError names the line (if given), the field, and its
        problem."""
        fields = Fields.parse(text, FORMAT, line)
        view = read_view(fields)
        outcome = _read_outcome(fields, view)
        lengths = fields.integers("lengths", view.num_rows)
        if problem := view_problem(view) or outcome_problem(view, outcome):
            fields.fail(problem)
        if min(lengths.min(initial=0), outcome.plan.lengths.min(initial=0)) < 0:
            fields.fail(
                f"field 'lengths' or 'plan_lengths' holds a negative length: {lengths.tolist()}"
            )
        return DecisionRecord(
            outcome=outcome,
            lengths=lengths,
            drafter=outcome.plan.drafter,
            survival=fields.numbers("survival", view.num_rows, None),
            reason=fields.optional(fields.text, "reason"),
            **{name: fields.number(name) for name in _PREDICTED},
        )


def _read_outcome(fields: Fields, view: BatchView) -> Outcome:
    num_rows = view.num_rows
    plan = Plan(
        fields.integers("plan_lengths", num_rows),
        fields.integers("drafter", num_rows),
        depths=fields.optional(fields.integers, "depths", num_rows),
        width=fields.integer("width", default=1),
    )
    free_tests = fields.optional(fields.integers, "free_tests", None, len(_FREE_COLUMNS), num_rows)
    divergence = fields.optional(fields.numbers, "divergence", num_rows, None)
    parents = fields.optional(fields.parents, "parents", num_rows)
    return Outcome(
        view=view,
        plan=plan,
        num_emitted=fields.integer("num_emitted"),
        seconds=StepSeconds(*fields.numbers("seconds", 3).tolist()),
        confidence=fields.optional(fields.numbers, "confidence", num_rows, None),
        free_tests=() if free_tests is None else tuple(FreeTests(*each) for each in free_tests),
        parents=parents,
        node_tests=None if parents is None else fields.integers("node_tests", num_rows, None),
        extras={} if divergence is None else {"divergence": divergence},
        **{name: fields.integers(name, num_rows) for name in _OUTCOME_COLUMNS},
    )


def decision_record(
    view: BatchView,
    plan: Plan,
    outcome: Outcome,
    *,
    goodput: float,
    off_goodput: float,
    predicted_seconds: float,
    survival: np.ndarray,
) -> DecisionRecord:
    """Return the record of a finished step. plan: the policy's for view. outcome: the result of it.

    view is kept in place of the outcome's own, which a host may have built from the same numbers.
    The prefill is taken from the outcome: a host may know it only after the step.

    The rest as in DecisionRecord. AssertionError if the outcome is of another batch.
    """
    assert np.array_equal(view.request_ids, outcome.view.request_ids), (
        "the outcome is of another step"
    )
    prefill = {name: getattr(outcome.view, name) for name in _PREFILL}
    if any(getattr(view, name) != value for name, value in prefill.items()):
        view = replace(view, **prefill)
    return DecisionRecord(
        outcome=outcome if outcome.view is view else replace(outcome, view=view),
        lengths=plan.lengths,
        drafter=plan.drafter,
        goodput=float(goodput),
        off_goodput=float(off_goodput),
        predicted_seconds=float(predicted_seconds),
        survival=survival,
        reason=plan.reason,
    )


@dataclass(frozen=True)
class LogHeader:
    """The first line of a log."""

    model: str
    policy: str
    max_draft_tokens: int  # K
    drafters: tuple[DrafterSpec, ...]  # in the order of their numbers
    profile: dict  # LatencyModel.to_dict() as it was when the log began

    def to_json(self) -> str:
        """Return one line, without its end."""
        drafters = [vars(drafter) for drafter in self.drafters]
        data = {"format": FORMAT, "header": True} | vars(self) | {"drafters": drafters}
        return json.dumps(data, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "LogHeader":
        """Return the inverse of to_json. ValueError names the field and its problem."""
        fields = Fields.parse(text, FORMAT, line=1)
        if "header" not in fields.data:
            fields.fail("field 'header' is missing: a decision log begins with its header")
        max_draft_tokens = fields.integer("max_draft_tokens")
        if max_draft_tokens < 1:
            fields.fail(f"field 'max_draft_tokens' is {max_draft_tokens}, it must be at least 1")
        return LogHeader(
            model=fields.text("model"),
            policy=fields.text("policy"),
            max_draft_tokens=max_draft_tokens,
            drafters=_read_drafters(fields),
            profile=fields.mapping("profile"),
        )


def _read_drafters(fields: Fields) -> tuple[DrafterSpec, ...]:
    try:
        return tuple(
            DrafterSpec(**each | {"match_lengths": tuple(map(int, each["match_lengths"]))})
            for each in fields.data["drafters"]
        )
    except (KeyError, TypeError, ValueError):
        fields.fail(
            "field 'drafters' must be a list of objects with name, has_passes and match_lengths"
        )
