"""The controller: it plans draft lengths from estimates, and learns from outcomes. It reads no
clock and prints nothing."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from smartspec.control.acceptance.estimator import AcceptanceEstimator
from smartspec.control.checks import NO_STEP_BEFORE, kind_of, outcome_problem, view_problem
from smartspec.control.estimates import Estimates
from smartspec.control.latency.model import LatencyModel, PredictedSeconds
from smartspec.control.log.decision import DecisionRecord, decision_record
from smartspec.control.planning import expected_tokens, no_drafts
from smartspec.control.policy import Policy
from smartspec.control.policy_names import OURS, our_policy
from smartspec.control.records import (
    BatchView,
    Drafted,
    DrafterSpec,
    Outcome,
    Plan,
    with_fields,
)
from smartspec.control.what_if import planned_goodput, uniform_goodput

NUM_DECISIONS = 20
# Steps at the start whose input is checked, and one of so many later ones: a wrong host is wrong
# from the start.
CHECKED_STEPS = 128


@dataclass(frozen=True)
class _Finished:
    """A finished step."""

    plan: Plan
    outcome: Outcome


class Controller:
    """Decides in every step the number of draft tokens of each request. It learns from a few steps
    at a time, with any policy.

    policy: a policy, or the name of one of ours (see policy_names; core.policy_names.parse_policy
    makes all others). max_draft_tokens: the longest draft of a request (K), at least 1. drafters:
    those the host has, in the order of their numbers. name: of the policy, for people.
    strict: input that cannot be true raises ValueError naming the value. Otherwise it is counted by
    kind (num_ignored): such a view gets no drafts, and such an outcome is not learned from.
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
        name: str | None = None,
    ):
        if max_draft_tokens < 1:
            raise ValueError(
                f"max_draft_tokens is {max_draft_tokens}: use at least 1; policy 'off' turns "
                "drafts off"
            )
        found = our_policy(policy, max_draft_tokens) if isinstance(policy, str) else policy
        if found is None:
            raise ValueError(f"unknown policy {policy!r}: use one of {OURS}")
        self.policy = found
        self.policy_name = name or (
            policy if isinstance(policy, str) else type(policy).__name__.lower()
        )
        self.max_draft_tokens = max_draft_tokens
        latency.use_drafters(drafters)
        self._latency = latency
        self._acceptance = AcceptanceEstimator(max_draft_tokens, drafters)
        self._unlearned: list[Outcome] = []
        self._ended: list[int] = []  # requests that ended since something was last learned
        # called with the record of each finished step
        self.on_record: Callable[[DecisionRecord], None] | None = None
        self.num_ignored: Counter[str] = Counter()
        self.drafters = drafters
        self._strict = strict
        self._last_now = NO_STEP_BEFORE
        self._num_plans = self._num_learned = 0
        # The time that was predicted for the last finished step. None where there is no prediction:
        # it takes time of the host, so there is one each time that something is learned.
        self.predicted_seconds: float | None = None
        self._history: deque[_Finished] = deque(maxlen=NUM_DECISIONS)

    @property
    def latency(self) -> LatencyModel:
        """The estimates of time, from all steps so far."""
        self._learn()
        return self._latency

    @property
    def acceptance(self) -> AcceptanceEstimator:
        """The estimates of acceptance, from all steps so far."""
        self._learn()
        return self._acceptance

    def plan(self, view: BatchView) -> Plan:
        """Return the number of draft tokens to make for each row, and the drafters. If all are 0,
        no drafter needs to run."""
        queried = not view.queries or self.policy.queries(view.num_rows)
        view = view.queried(queried)
        last_now, self._last_now = self._last_now, view.now
        self._num_plans += 1
        if self._is_checked and self._refuse(view_problem(view, last_now, len(self.drafters))):
            return no_drafts(view.num_rows)
        if not view.has_drafts:  # nothing to decide, and nothing to learn but the time
            return with_fields(no_drafts(view.num_rows), view=view, queried=queried)
        plan = self.policy.plan(view, self._estimates(view))
        return with_fields(plan, view=view, queried=queried)

    def cut(self, plan: Plan, drafted: Drafted) -> np.ndarray:
        """Return the number of drafted tokens to verify: int [R], never more than planned or
        drafted.

        Nothing here may depend on sampled tokens: to drop a token for its own probability would
        bias the output.
        """
        if not any(drafted.lengths.tolist()):
            return drafted.lengths
        if plan.view is None:
            return np.zeros_like(drafted.lengths)
        survival = partial(self._survival, plan, drafted.confidence, drafted.parents)
        kept = self.policy.cut(plan, drafted, survival)
        return np.minimum(kept, np.minimum(plan.lengths, drafted.lengths))

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        """Learn from the outcome of a plan, any number of steps later and in any order. Learning
        takes several steps together: policy.learn_steps of them."""
        # the outcome of a refused view may come in a later step
        is_checked = self._is_checked or plan.view is None
        if is_checked and self._refuse(outcome_problem(plan.view, outcome, self.max_draft_tokens)):
            return
        step = _Finished(plan, outcome)
        self._history.append(step)
        self.predicted_seconds = None
        if self.on_record is not None:
            self.on_record(self._record(step))
        if self._can_learn:
            self._unlearned.append(outcome)
        if len(self._unlearned) >= self.policy.learn_steps:
            self._learn()
        assert plan.view is not None, "an outcome without a plan is refused"
        self.policy.learn(plan, outcome)

    def forget_acceptance(self) -> None:
        """Forget how often drafts are accepted, as the target's weights have changed. Estimates of
        time stay."""
        self._learn()
        self._acceptance = AcceptanceEstimator(self.max_draft_tokens, self.drafters)
        self._num_learned += 1

    def end(self, request_id: int) -> None:
        """Drop the estimates of a request that has ended."""
        self._ended.append(request_id)
        self.policy.end(request_id)

    def use_latency(self, latency: LatencyModel) -> None:
        """Replace all estimates of time by a new profile. ValueError where it does not fit the
        drafters."""
        latency.use_drafters(self.drafters)
        self._learn()
        self._latency = latency
        self._num_learned += 1

    def state(self) -> dict:
        """Return, JSON-able, policy, estimates, cost model, the last decisions and their
        outcomes."""
        # This comes first: the estimates below learn from the last steps.
        decisions = [self._record(step).summary() for step in self._history]
        return {
            "policy": self.policy_name,
            "max_draft_tokens": self.max_draft_tokens,
            "drafters": [drafter.name for drafter in self.drafters],
            "policy_state": self.policy.state(),
            "acceptance": self.acceptance.table(),
            "tracked_requests": self.acceptance.num_tracked_requests,
            "cost_model": self.latency.state(),
            "decisions": decisions,
            "ignored_input": dict(self.num_ignored),
        }

    def explain(self) -> dict | None:
        """Return, JSON-able, the decision of the last finished step, queried (True if drafters were
        queried), and what_if, see _what_if. None before the first step. Call it between steps: it
        changes nothing."""
        if not self._history:
            return None
        step = self._history[-1]
        return self._record(step).summary() | {
            "queried": step.plan.queried,
            "what_if": self._what_if(),
        }

    def _what_if(self) -> dict | None:
        """Return the expected goodput of a batch as planned, and with 0, 1, ..., K draft tokens for
        every request, by the present estimates.

        The batch is that of the last step with drafts to choose from, as most steps have none where
        drafts do not pay. steps_ago: 0 for the last step. None where the last NUM_DECISIONS steps
        had none."""
        for steps_ago, step in enumerate(reversed(self._history)):
            view = _view_of(step.plan)
            if view.has_drafts:
                estimates = self._estimates(view)
                plan = with_fields(step.outcome.as_drafted(), lengths=step.outcome.verified)
                planned = planned_goodput(view, estimates, self._latency, plan)
                uniform = uniform_goodput(view, estimates, self._latency)
                return {"steps_ago": steps_ago, "planned": planned, "uniform": uniform}
        return None

    def _estimates(self, view: BatchView) -> Estimates:
        """Return the present estimates of a step. For a few drafts that exist, their survival is
        never needed."""
        return Estimates(
            self.drafters,
            partial(self._acceptance.survival, view),
            self._latency,
            self._acceptance,
            rank_chances=self._acceptance.rank_chances,
            num_learned=self._num_learned,
        )

    @property
    def _is_checked(self) -> bool:
        """True if the input of this step is checked."""
        return (
            self._strict or self._num_plans <= CHECKED_STEPS or self._num_plans % CHECKED_STEPS == 0
        )

    @property
    def _can_learn(self) -> bool:
        """True if estimates learn from this step. Where the policy uses no estimates, they learn
        from few steps, for people who watch the server."""
        is_watched = (
            self._num_plans <= CHECKED_STEPS
            or self._num_plans % CHECKED_STEPS < self.policy.learn_steps
        )
        return is_watched or self.policy.uses_estimates

    def _predict(self, outcome: Outcome) -> PredictedSeconds:
        return self._latency.predict(outcome.view, outcome.as_drafted(), outcome.verified)

    def _refuse(self, problem: str | None) -> bool:
        """Count the problem, and return True if there is one. ValueError in strict mode."""
        if problem is None:
            return False
        if self._strict:
            raise ValueError(problem)
        self.num_ignored[kind_of(problem)] += 1
        return True

    def _survival(
        self, plan: Plan, confidence: np.ndarray | None, parents: np.ndarray | None
    ) -> np.ndarray:
        """Return the survival of the drafts of a plan as they were made: float [R, K]. confidence,
        parents: as in Drafted."""
        if confidence is None:
            estimates = self._estimates(_view_of(plan)).of_width(plan.width)
            return estimates.survival_of(plan.drafter)
        return self._acceptance.survival_given_confidence(
            _view_of(plan), plan.drafter, confidence, parents
        )

    def _record(self, step: _Finished) -> DecisionRecord:
        """Return the record of a step, for people, logs and replays. Survival and time are by the
        present estimates."""
        plan, view, outcome = step.plan, _view_of(step.plan), step.outcome
        survival = self._survival(plan, outcome.confidence, outcome.parents)
        predicted = self._predict(outcome)
        return decision_record(
            view,
            plan,
            outcome,
            goodput=expected_tokens(view, survival, outcome.verified) / predicted.total,
            off_goodput=float(view.weights.sum()) / predicted.off,
            predicted_seconds=predicted.total,
            survival=survival,
        )

    def _learn(self) -> None:
        steps, self._unlearned = self._unlearned, []
        if steps:
            self._num_learned += 1
            self.predicted_seconds = self._predict(steps[-1]).total
            self._latency.observe(steps)
        if chosen := [outcome for outcome in steps if outcome.view.has_drafts]:
            self._acceptance.observe(chosen)
        ended, self._ended = self._ended, []
        for request_id in ended:
            self._acceptance.forget(request_id)


def _view_of(plan: Plan) -> BatchView:
    assert plan.view is not None, "a refused view is not learned from"
    return plan.view
