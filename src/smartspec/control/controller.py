"""The controller: estimates in, lengths out, and what happened back in. It reads no clock and prints nothing."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from smartspec.control.acceptance import AcceptanceEstimator, observations
from smartspec.control.latency import LatencyModel, PredictedSeconds
from smartspec.control.policies.base import Estimates
from smartspec.control.policies.names import parse_policy
from smartspec.control.records import BatchView, Drafted, DraftPlan, StepFeedback, StepSeconds

NUM_DECISIONS = 20


@dataclass(frozen=True)
class Decision:
    """What was decided and predicted for one step. Goodput in tokens per second; off_goodput: without drafts."""

    num_rows: int
    prefill_tokens: int
    lengths: tuple[int, ...]
    goodput: float
    off_goodput: float
    seconds: PredictedSeconds

    def to_dict(self) -> dict:
        return {
            "num_rows": self.num_rows,
            "prefill_tokens": self.prefill_tokens,
            "lengths": list(self.lengths),
            "predicted_goodput": self.goodput,
            "predicted_goodput_off": self.off_goodput,
            "predicted_seconds": self.seconds.total,
        }


@dataclass(frozen=True)
class Outcome:
    """What a step then did."""

    verified: tuple[int, ...]
    accepted: tuple[int, ...]
    num_emitted: int
    seconds: StepSeconds

    def to_dict(self) -> dict:
        return {
            "verified": list(self.verified),
            "accepted": list(self.accepted),
            "emitted": self.num_emitted,
            "measured_seconds": self.seconds.total,
        }


class Controller:
    """Decides every step how many draft tokens each request gets, and learns from every step, whatever the policy.

    policy_name: see policies.names.parse_policy. max_draft_tokens: longest draft of a request (K), at least 1.
    has_offers, has_model: which kinds of drafter the host runs. ValueError on an unknown policy or a bad length.
    """

    def __init__(
        self, policy_name: str, max_draft_tokens: int, latency: LatencyModel, *, has_offers: bool, has_model: bool
    ):
        if max_draft_tokens < 1:
            raise ValueError(f"max_draft_tokens is {max_draft_tokens}: use at least 1; policy 'off' turns drafts off")
        self.policy = parse_policy(policy_name, max_draft_tokens)
        self.policy_name = policy_name
        self.max_draft_tokens = max_draft_tokens
        self.latency = latency
        self.acceptance = AcceptanceEstimator(max_draft_tokens)
        self._has_offers = has_offers
        self._has_model = has_model
        self._decision = Decision(0, 0, (), 0.0, 0.0, PredictedSeconds(0.0, 0.0, 0.0, 0.0))
        self._survival = np.empty((0, max_draft_tokens))
        self._history: deque[tuple[Decision, Outcome]] = deque(maxlen=NUM_DECISIONS)
        self._num_ignored = 0

    def plan_draft(self, view: BatchView) -> DraftPlan:
        """How many draft tokens to make for each row, and by what. All zero: no drafter need run."""
        survival_offer = self._predict_survival(view, False)
        survival_model = self._predict_survival(view, True) if self._has_model else None
        plan = self.policy.plan_draft(view, Estimates(survival_offer, survival_model, self.latency))
        self._survival = survival_offer
        if survival_model is not None:
            self._survival = np.where(plan.use_model[:, None], survival_model, survival_offer)
        self._decision = self._decide(view, plan, plan.lengths)
        return plan

    def plan_verify(self, view: BatchView, plan: DraftPlan, drafted: Drafted) -> np.ndarray:
        """How many of the drafted tokens to verify: int [R], never more than planned or drafted.

        Nothing here may depend on tokens that were sampled: dropping a token for its own probability biases the output.
        """
        keep = self.policy.plan_verify(view, plan, drafted, self._survival, self.latency)
        keep = np.minimum(keep, np.minimum(plan.lengths, drafted.lengths))
        if tuple(keep.tolist()) != self._decision.lengths:
            self._decision = self._decide(view, plan, keep)
        return keep

    def observe(self, feedback: StepFeedback) -> None:
        """Learn from a finished step. Feedback that cannot be true is counted and otherwise ignored."""
        if not _is_plausible(feedback):
            self._num_ignored += 1
            return
        view, plan = feedback.view, feedback.plan
        self.latency.observe(view, plan, feedback.verified, feedback.seconds)
        is_observed, is_accepted = observations(
            self.max_draft_tokens, feedback.verified, feedback.tested, feedback.accepted, feedback.next_match
        )
        self.acceptance.observe(view.request_ids, plan.use_model, view.offers.evidence, is_observed, is_accepted)
        self.policy.observe(feedback)
        verified, accepted = tuple(feedback.verified.tolist()), tuple(feedback.accepted.tolist())
        self._history.append((self._decision, Outcome(verified, accepted, feedback.num_emitted, feedback.seconds)))

    def forget(self, request_id: int) -> None:
        """Drop what is known about a request that has ended."""
        self.acceptance.forget(request_id)
        self.policy.forget(request_id)

    @property
    def predicted_seconds(self) -> float:
        """Predicted time of the step that was last planned, in seconds."""
        return self._decision.seconds.total

    def state(self) -> dict:
        """JSON-able: policy, estimates, cost model, the last decisions and their outcomes."""
        return {
            "policy": self.policy_name,
            "max_draft_tokens": self.max_draft_tokens,
            "drafters": {"offers": self._has_offers, "model": self._has_model},
            "acceptance": self.acceptance.table(),
            "tracked_requests": self.acceptance.num_tracked_requests,
            "cost_model": self.latency.state(),
            "decisions": [decision.to_dict() | outcome.to_dict() for decision, outcome in self._history],
            "ignored_observations": self._num_ignored,
        }

    def _predict_survival(self, view: BatchView, use_model: bool) -> np.ndarray:
        return self.acceptance.survival(view.request_ids, np.full(view.num_rows, use_model), view.offers.evidence)

    def _decide(self, view: BatchView, plan: DraftPlan, lengths: np.ndarray) -> Decision:
        """The record of verifying these lengths, with the prediction for them and for no drafts at all."""
        seconds = self.latency.predict(view, plan, lengths)
        is_verified = np.arange(self.max_draft_tokens) < lengths[:, None]
        emitted = view.num_rows + float(self._survival[is_verified].sum())
        return Decision(
            num_rows=view.num_rows,
            prefill_tokens=view.prefill_tokens,
            lengths=tuple(lengths.tolist()),
            goodput=emitted / seconds.total,
            off_goodput=view.num_rows / seconds.off,
            seconds=seconds,
        )


def _is_plausible(feedback: StepFeedback) -> bool:
    """Whether seconds are finite and positive, and counts fit the batch and each other."""
    seconds = (feedback.seconds.draft, feedback.seconds.target, feedback.seconds.host)
    if not (np.isfinite(seconds).all() and min(seconds) >= 0 and feedback.seconds.target > 0):
        return False
    counts = (feedback.drafted, feedback.verified, feedback.tested, feedback.accepted, feedback.next_match)
    if any(np.shape(count) != (feedback.view.num_rows,) for count in counts):
        return False
    drafted, verified, tested, accepted, next_match = counts
    in_order = (tested >= 0) & (accepted >= 0) & (tested <= verified) & (accepted <= verified) & (verified <= drafted)
    return bool(in_order.all() and (abs(next_match) <= 1).all())
