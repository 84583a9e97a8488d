"""The controller: estimates in, lengths out, and what happened back in. It reads no clock and prints nothing."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from smartspec.control.acceptance.estimator import AcceptanceEstimator
from smartspec.control.checks import NO_STEP_BEFORE, kind_of, problems
from smartspec.control.latency.model import LatencyModel, MeasuredStep, PredictedSeconds
from smartspec.control.log.decision import Alternative, DecisionRecord, decision_record
from smartspec.control.policy import Estimates, Policy, expected_accepted, no_drafts
from smartspec.control.policy_names import parse_policy
from smartspec.control.records import Asked, BatchView, Drafted, DrafterSpec, DraftPlan, StepFeedback
from smartspec.control.what_if import planned_goodput, uniform_goodput

NUM_DECISIONS = 20
# Steps that are learned from together: behind a target pass the code of learning is in no cache, and running it costs
# more than its arithmetic, however many rows there are.
LEARN_STEPS = 8
SURPRISE = 0.25  # a step that took so much more or less than predicted, relative, is learned from at once


@dataclass(frozen=True)
class Planned:
    """A step that has been planned, for what comes of it: see Controller.observe. survival: float [R, K], of the drafts
    of each row. asked: who was asked for drafts; None: the host never wanted to know. tell: takes the feedback to the
    policy; None where no row could have a draft. reason: why it is not what the policy's rule would have chosen."""

    view: BatchView
    plan: DraftPlan
    survival: np.ndarray
    asked: Asked | None
    tell: Callable[[StepFeedback], None] | None = None
    alternatives: tuple[Alternative, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class _Finished:
    """A step that is over: all that a record of it is made from. drafted: what was drafted of it."""

    planned: Planned
    drafted: DraftPlan
    feedback: StepFeedback
    predicted: PredictedSeconds

    @property
    def measured(self) -> MeasuredStep:
        """What its time says."""
        feedback = self.feedback
        return MeasuredStep(feedback.view, self.drafted, feedback.verified, feedback.seconds, self.predicted)

    def record(self) -> DecisionRecord:
        """For people, logs and replays."""
        planned, view = self.planned, self.planned.view
        return decision_record(
            view,
            planned.plan,
            self.feedback,
            goodput=_expected_tokens(view, planned.survival, self.feedback.verified) / self.predicted.total,
            off_goodput=float(view.weights.sum()) / self.predicted.off,
            predicted_seconds=self.predicted.total,
            survival=planned.survival,
            alternatives=planned.alternatives,
            reason=planned.reason,
        )


class Controller:
    """Decides every step how many draft tokens each request gets, and learns, whatever the policy, from a few steps at
    a time.

    policy: a name, see policies.names.parse_policy, or a policy. max_draft_tokens: longest draft of a request (K), at
    least 1. drafters: those the host has, in the order of their numbers. strict: input that cannot be true raises
    ValueError naming the value; otherwise it is counted by kind (num_ignored), and a view is decided as if there were
    no drafters, feedback is not learned from. on_record: called with the record of every finished step, if set.
    ValueError on an unknown policy, a bad length, or a drafter that the latency model does not fit.
    """

    def __init__(
        self,
        policy: str | Policy,
        max_draft_tokens: int,
        latency: LatencyModel,
        *,
        drafters: tuple[DrafterSpec, ...],
        strict: bool = False,
    ):
        if max_draft_tokens < 1:
            raise ValueError(f"max_draft_tokens is {max_draft_tokens}: use at least 1; policy 'off' turns drafts off")
        self.policy = parse_policy(policy, max_draft_tokens) if isinstance(policy, str) else policy
        self.policy_name = policy if isinstance(policy, str) else type(policy).__name__.lower()
        self.max_draft_tokens = max_draft_tokens
        latency.use_drafters(drafters)
        self._latency = latency
        self._acceptance = AcceptanceEstimator(max_draft_tokens, drafters)
        self._unlearned: list[_Finished] = []
        self._ended: list[int] = []  # requests, since something was last learned
        self.on_record: Callable[[DecisionRecord], None] | None = None
        self.num_ignored: Counter[str] = Counter()
        self.drafters = drafters
        self._strict = strict
        self._last_now = NO_STEP_BEFORE
        self._asked: Asked | None = None
        self.planned: Planned | None = None  # the last step; None where its view was refused
        self._predicted = PredictedSeconds({}, 0.0, 0.0, 0.0)
        self._history: deque[_Finished] = deque(maxlen=NUM_DECISIONS)

    @property
    def latency(self) -> LatencyModel:
        """What is known about time, from all steps so far."""
        self._learn()
        return self._latency

    @property
    def acceptance(self) -> AcceptanceEstimator:
        """What is known about acceptance, from all steps so far."""
        self._learn()
        return self._acceptance

    def asks_drafters(self, num_rows: int) -> Asked:
        """Which drafters should be asked what they can draft in the next step, of so many decoding requests. A host
        may ask this before it makes a view, in which all lengths of the others are 0."""
        self._asked = self.policy.asks_drafters(num_rows, self.drafters) if self.drafters else Asked.NOBODY
        return self._asked

    def plan_draft(self, view: BatchView) -> DraftPlan:
        """How many draft tokens to make for each row, and by what. All zero: no drafter need run."""
        if self._refuse(problems(view, last_now=self._last_now, num_drafters=len(self.drafters))):
            self.planned, self._last_now = None, view.now
            return no_drafts(view.num_rows)
        self._last_now = view.now
        if not view.draft_lengths.any():  # nothing to decide, and nothing to learn but the time
            survival = np.zeros((view.num_rows, self.max_draft_tokens))
            self.planned = Planned(view, no_drafts(view.num_rows), survival, self._asked)
            return self.planned.plan
        estimates = self._estimates(view)
        plan = self.policy.plan_draft(view, estimates)
        self.planned = Planned(
            view,
            plan,
            survival=estimates.of_width(plan.width).survival_of(plan.drafter),
            asked=self._asked,
            tell=self.policy.observer(),
            # Before anything is learned from the step, or they would answer another question than it did.
            alternatives=() if self.on_record is None else self._other_plans(view, estimates, plan),
            reason=self.policy.note,
        )
        return plan

    def plan_verify(self, view: BatchView, plan: DraftPlan, drafted: Drafted) -> np.ndarray:
        """How many of the drafted tokens to verify: int [R], never more than planned or drafted.

        Nothing here may depend on tokens that were sampled: dropping a token for its own probability biases the output.
        """
        if self.planned is None or not drafted.lengths.any():
            return np.zeros_like(drafted.lengths)
        if drafted.confidence is not None:
            survival = self._acceptance.survival_given_confidence(
                view, plan.drafter, drafted.confidence, drafted.parents
            )
            self.planned = replace(self.planned, survival=survival)
        keep = self.policy.plan_verify(view, plan, drafted, self.planned.survival, self._latency)
        return np.minimum(keep, np.minimum(plan.lengths, drafted.lengths))

    def observe(self, feedback: StepFeedback, planned: Planned | None = None) -> None:
        """Learn from a finished step, at the latest when LEARN_STEPS are. planned: what self.planned was when it had
        been planned, where another step has been planned since."""
        planned = planned or self.planned
        view = None if planned is None else planned.view
        if self._refuse(problems(view, feedback, max_draft_tokens=self.max_draft_tokens)):
            return
        assert planned is not None, "feedback of no planned step is refused"
        drafted = feedback.as_drafted()
        self._predicted = self._latency.predict(feedback.view, drafted, feedback.verified)
        step = _Finished(planned, drafted, feedback, self._predicted)
        self._history.append(step)
        if self.on_record is not None:
            self.on_record(step.record())
        self._unlearned.append(step)
        is_surprise = abs(feedback.seconds.total / self._predicted.total - 1.0) > SURPRISE
        if is_surprise or len(self._unlearned) >= LEARN_STEPS:
            self._learn()
        if planned.tell is not None:
            planned.tell(feedback)
        if planned.asked is not None and self.drafters:
            self.policy.observe_step(feedback, planned.asked)

    def forget(self, request_id: int) -> None:
        """Drop what is known about a request that has ended."""
        self._ended.append(request_id)
        self.policy.forget(request_id)

    @property
    def predicted_seconds(self) -> float:
        """Time that was predicted for the last finished step, in seconds."""
        return self._predicted.total

    def use_latency(self, latency: LatencyModel) -> None:
        """Forget what is known about time for a new profile. ValueError where it does not fit the drafters."""
        latency.use_drafters(self.drafters)
        self._learn()
        self._latency = latency

    def state(self) -> dict:
        """JSON-able: policy, estimates, cost model, the last decisions and their outcomes."""
        return {
            "policy": self.policy_name,
            "max_draft_tokens": self.max_draft_tokens,
            "drafters": [drafter.name for drafter in self.drafters],
            "policy_state": self.policy.state(),
            "acceptance": self.acceptance.table(),
            "tracked_requests": self.acceptance.num_tracked_requests,
            "cost_model": self.latency.state(),
            "decisions": [step.record().summary() for step in self._history],
            "ignored_input": dict(self.num_ignored),
        }

    def explain(self) -> dict | None:
        """JSON-able, of the last finished step: its decision, and in what_if the goodput that its batch would be
        expected to have, by what is known now, with the plan and with 0, 1, ..., K draft tokens for everybody. None
        before the first step. Call it between steps: it changes nothing."""
        if not self._history:
            return None
        step = self._history[-1]
        view, feedback = step.planned.view, step.feedback
        estimates = self._estimates(view)
        planned = planned_goodput(view, estimates, self._latency, step.drafted, feedback.verified)
        uniform = uniform_goodput(view, estimates, self._latency) if view.draft_lengths.any() else []
        return step.record().summary() | {"what_if": {"planned": planned, "uniform": uniform}}

    def _estimates(self, view: BatchView) -> Estimates:
        acceptance = self._acceptance
        survival = acceptance.survival(view)
        return Estimates(self.drafters, survival, self._latency, acceptance, siblings=acceptance.siblings)

    def _refuse(self, problem: str | None) -> bool:
        """Whether there is a problem, which is then counted; ValueError in strict mode."""
        if problem is None:
            return False
        if self._strict:
            raise ValueError(problem)
        self.num_ignored[kind_of(problem)] += 1
        return True

    def _other_plans(self, view: BatchView, estimates: Estimates, plan: DraftPlan) -> tuple[Alternative, ...]:
        """What the policy might have chosen, with the goodput a record would say of it if all of it was verified."""
        others = []
        for label, other in self.policy.alternatives(view, estimates, plan):
            survival = estimates.of_width(other.width).survival_of(other.drafter)
            tokens = _expected_tokens(view, survival, other.lengths)
            seconds = self._latency.predict(view, other, other.lengths).total
            others.append(Alternative(label, int(other.lengths.sum()), tokens / seconds))
        return tuple(others)

    def _learn(self) -> None:
        steps, self._unlearned = self._unlearned, []
        if steps:
            self._latency.observe_steps([step.measured for step in steps])
        if chosen := [step.feedback for step in steps if step.feedback.view.draft_lengths.any()]:
            self._acceptance.observe(chosen)
        ended, self._ended = self._ended, []
        for request_id in ended:
            self._acceptance.forget(request_id)


def _expected_tokens(view: BatchView, survival: np.ndarray, verified: np.ndarray) -> float:
    """(Weighted) tokens the decoding requests are expected to emit. verified: int [R], draft tokens of each."""
    return float(view.weights @ (1.0 + expected_accepted(survival, verified)))
