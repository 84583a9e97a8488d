"""What every policy is: from what is expected of drafts and time to how many draft tokens each request gets.

Every policy speculates without loss: lengths depend on load, history and confidence, never on tokens that were sampled.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from smartspec.control.records import BatchView, Drafted, DraftPlan, StepFeedback


class Uncertain(Protocol):
    """How sure the acceptance estimates are, and what would change them: see acceptance.AcceptanceEstimator."""

    @property
    def knows_confidence(self) -> bool: ...

    def log_odds_std(self, view: BatchView, use_model: np.ndarray | bool) -> np.ndarray: ...

    def survival_shifted(
        self, view: BatchView, use_model: np.ndarray | bool, shift: np.ndarray | float
    ) -> np.ndarray: ...

    def given_confidence(self, confidence: np.ndarray, history: np.ndarray) -> np.ndarray: ...


class Latency(Protocol):
    """What a step is expected to take, in seconds: see latency.LatencyModel."""

    @property
    def host_seconds(self) -> float: ...

    def target_seconds(self, view: BatchView, num_draft_tokens: np.ndarray) -> np.ndarray: ...

    def draft_seconds(self, view: BatchView, use_model: np.ndarray, max_depth: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Estimates:
    """What is believed before a decision.

    survival_offer, survival_model: float [R, K], the probability that the first j draft tokens of the offer, or of the
    draft model, are all accepted; survival_model is None without a draft model. acceptance: the estimator they come
    from, None where there is none (an oracle has no doubts).
    """

    survival_offer: np.ndarray
    survival_model: np.ndarray | None
    latency: Latency
    acceptance: Uncertain | None = None

    def survival(self, use_model: np.ndarray) -> np.ndarray:
        """float [R, K], of the source each row uses (bool [R])."""
        if self.survival_model is None:
            return self.survival_offer
        return np.where(use_model[:, None], self.survival_model, self.survival_offer)

    @property
    def max_draft_tokens(self) -> int:
        return self.survival_offer.shape[1]


class Policy:
    """Decides lengths. A policy that learns keeps its own state; all but plan_draft have a default.

    note: why the last plan was not what the policy's rule alone would have chosen (a guard, a probe), None if it was.
    needs_divergence: whether it cannot do without StepFeedback.divergence. reads_tpot_targets: whether
    BatchView.tpot_targets make a difference.
    """

    note: str | None = None
    needs_divergence = False
    reads_tpot_targets = False

    def plan_draft(self, view: BatchView, estimates: Estimates) -> DraftPlan:
        """How many tokens to draft for each row, and by what."""
        raise NotImplementedError

    def plan_verify(
        self, view: BatchView, plan: DraftPlan, drafted: Drafted, survival: np.ndarray, latency: Latency
    ) -> np.ndarray:
        """How many of the drafted tokens to verify: int [R], at most drafted.lengths.

        survival: float [R, K], as in Estimates, of the drafts as they turned out (confidence taken into account).

        Whether a token is kept must not depend on what is known only once it is drawn: the confidence of the tokens
        behind it, how long its draft became and, if a StopRule couples rows, the same of other rows. Nothing that was
        drawn may be seen in prices either. Else what is kept is biased, and with it the output.
        """
        return drafted.lengths

    def alternatives(self, view: BatchView, estimates: Estimates, plan: DraftPlan) -> list[tuple[str, DraftPlan]]:
        """The best plans that were considered and not chosen, best first, each with a label: asked for right after
        plan_draft, with what it was given and its answer. A policy that compares no plans has none."""
        return []

    def observe(self, feedback: StepFeedback) -> None:
        """Learn from a finished step."""

    def forget(self, request_id: int) -> None:
        """Drop what is known about a request that has ended; unknown ones are ignored."""

    def state(self) -> dict:
        """What a person would want to know about the policy's own state, JSON-able."""
        return {}


def no_drafts(num_rows: int) -> DraftPlan:
    """Plain decoding."""
    return DraftPlan(lengths=np.zeros(num_rows, dtype=np.int64), use_model=np.zeros(num_rows, dtype=bool))


def length_caps(view: BatchView, use_model: np.ndarray | bool, max_draft_tokens: int) -> np.ndarray:
    """Longest draft each row can have from that source: int [R]."""
    caps = np.minimum(np.maximum(view.max_draft_tokens, 0), max_draft_tokens)
    return np.where(use_model, caps, np.minimum(caps, view.offers.lengths))


def offers_first(view: BatchView, estimates: Estimates) -> np.ndarray:
    """The usual source: the offer where there is one, as it is free, else the draft model if any: bool [R]."""
    return (view.offers.lengths == 0) & (estimates.survival_model is not None)


def expected_accepted(survival: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Tokens expected to be accepted of drafts of these lengths (int [R]): float [R]. survival: float [R, K]."""
    return (survival * (np.arange(survival.shape[1]) < lengths[:, None])).sum(axis=1)


def plan_of_lengths(view: BatchView, estimates: Estimates, lengths: np.ndarray | int) -> DraftPlan:
    """Drafts of these lengths (int [R], or one for all) from the usual source, cut to what each row can have.

    Where they exceed view.draft_token_budget together, the longest are cut, to one length for all that are cut.
    """
    use_model = offers_first(view, estimates)
    lengths = np.minimum(length_caps(view, use_model, estimates.max_draft_tokens), lengths)
    if lengths.sum() > view.draft_token_budget:
        ceilings = np.arange(estimates.max_draft_tokens + 1)
        totals = np.minimum(lengths[:, None], ceilings).sum(axis=0)
        lengths = np.minimum(lengths, np.flatnonzero(totals <= view.draft_token_budget)[-1])
    return DraftPlan(lengths=lengths, use_model=use_model & (lengths > 0))
