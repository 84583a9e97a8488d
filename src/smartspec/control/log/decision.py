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
_SECONDS = ("draft", "target", "host")
_PREFILL = ("num_prefills", "prefill_tokens", "prefill_context_tokens", "prefill_attended_tokens")
_TREE_MATRICES = ("parents", "node_tests")


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
        data |= {"plan_lengths": outcome.plan.lengths.tolist()}
        if outcome.plan.width > 1 and outcome.plan.depths is not None:
            data |= {"width": int(outcome.plan.width), "depths": outcome.plan.depths.tolist()}
        data |= {
            "goodput": self.goodput,
            "off_goodput": self.off_goodput,
            "predicted_seconds": self.predicted_seconds,
        }
        data |= {"survival": np.round(self.survival, 4).tolist(), "reason": self.reason}
        data |= {name: getattr(outcome, name).tolist() for name in _OUTCOME_COLUMNS}
        data |= {"num_emitted": int(outcome.num_emitted)}
        data |= {"seconds": [getattr(outcome.seconds, name) for name in _SECONDS]}
        if any(free.tested.any() for free in outcome.free_tests):
            data["free_tests"] = columns_of(outcome.free_tests, _FREE_COLUMNS)
        matrices = {
            "confidence": outcome.confidence,
            "divergence": outcome.extras.get("divergence"),
        }
        data |= {
            name: matrix_or_null(value) for name, value in matrices.items() if value is not None
        }
        if outcome.parents is not None:
            data |= {name: getattr(outcome, name).tolist() for name in _TREE_MATRICES}
        return json.dumps(data, allow_nan=False, separators=(",", ":"))

    @staticmethod
    def from_json(text: str, line: int | None = None) -> "DecisionRecord":
        """Return the inverse of to_json. ValueError names the line (if given), the field, and its
        problem."""
        fields = Fields.parse(text, FORMAT, line)
        view = read_view(fields)
        num_rows = view.num_rows
        drafter = fields.integers("drafter", num_rows)
        counts = {name: fields.integers(name, num_rows) for name in _OUTCOME_COLUMNS}
        matrices = (
            {"confidence": fields.matrix("confidence", num_rows)}
            if fields.has("confidence")
            else {}
        )
        extras = (
            {"divergence": fields.matrix("divergence", num_rows)}
            if fields.has("divergence")
            else {}
        )
        if fields.has("parents"):
            matrices |= {"parents": fields.parents("parents", num_rows)}
            matrices |= {"node_tests": fields.matrix("node_tests", num_rows).astype(np.int64)}
        outcome = Outcome(
            view=view,
            plan=Plan(
                fields.integers("plan_lengths", num_rows),
                drafter,
                depths=fields.integers("depths", num_rows) if fields.has("depths") else None,
                width=fields.integer("width", default=1),
            ),
            num_emitted=fields.integer("num_emitted"),
            seconds=StepSeconds(*fields.numbers("seconds", len(_SECONDS)).tolist()),
            free_tests=tuple(
                FreeTests(*c) for c in fields.tables("free_tests", len(_FREE_COLUMNS), num_rows)
            ),
            extras=extras,
            **counts,
            **matrices,
        )
        lengths = fields.integers("lengths", num_rows)
        if problem := view_problem(view) or outcome_problem(view, outcome):
            fields.fail(problem)
        if min(lengths.min(initial=0), outcome.plan.lengths.min(initial=0)) < 0:
            fields.fail(
                f"field 'lengths' or 'plan_lengths' holds a negative length: {lengths.tolist()}"
            )
        return DecisionRecord(
            outcome=outcome,
            lengths=lengths,
            drafter=drafter,
            goodput=fields.number("goodput"),
            off_goodput=fields.number("off_goodput"),
            predicted_seconds=fields.number("predicted_seconds"),
            survival=fields.matrix("survival", num_rows),
            reason=fields.text("reason") if fields.has("reason") else None,
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
        data = (
            {"format": FORMAT, "header": True}
            | vars(self)
            | {"drafters": [vars(d) for d in self.drafters]}
        )
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
        found = [
            DrafterSpec(
                str(d["name"]),
                bool(d["has_passes"]),
                tuple(map(int, d["match_lengths"])),
                makes_trees=bool(d.get("makes_trees", False)),
                one_pass_depth=int(d.get("one_pass_depth", 0)),
                context_limit=int(d.get("context_limit", 0)),
                kept_passes=int(d.get("kept_passes", 0)),
            )
            for d in fields.data["drafters"]
        ]
    except (KeyError, TypeError, ValueError):
        return fields.fail(
            "field 'drafters' must be a list of objects with name, has_passes and match_lengths"
        )
    return tuple(found)
