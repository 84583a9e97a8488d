"""Records that cross the border between a host (engine, simulator, plugin) and the controller.

Arrays are aligned by row: row i is the i-th decoding request of the step. A decoding request is one that feeds
exactly one ordinary token in this step and may carry draft tokens behind it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

UNLIMITED = 2**31 - 1
OTHER_TEXT = 16

# Asked after every pass of the draft model: (depth, rows, confidence, entropy) -> bool [n], True where a row drafts no
# more. depth counts from 0; rows int [n] are those that took part; confidence and entropy (nats), float [n], describe
# the distributions their tokens of this pass were drawn from. Stopping behind a token that is kept biases nothing.
StopRule = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Offers:
    """Drafts that exist before any decision because they cost nothing to make (prompt lookup).

    lengths: int [R], 0 where nothing was found. evidence: int [R], how strong the drafter thinks its draft is, 0 where
    nothing was found: length of the match in the request's own text, or OTHER_TEXT plus that in the text of others.
    Acceptance is learned separately per evidence class.
    """

    lengths: np.ndarray
    evidence: np.ndarray

    @staticmethod
    def none(num_rows: int) -> "Offers":
        """Offers of a step without a model-free drafter."""
        zeros = np.zeros(num_rows, dtype=np.int64)
        return Offers(lengths=zeros, evidence=zeros)


@dataclass(frozen=True)
class BatchView:
    """What a controller may know about a step before it decides: numbers that are on the host anyway.

    request_ids: int [R], unique for the life of the engine. context_tokens: int [R], tokens in the target's KV.
    max_draft_tokens: int [R], most draft tokens the row may carry (remaining output, context, KV).
    unseen_tokens: int [R], committed tokens a draft model would first have to catch up on, the newest one excluded.
    num_prefills, prefill_tokens: requests that are still in prefill and the tokens they feed. prefill_context_tokens:
    sum of their contexts at the end of the step; prefill_attended_tokens: sum over fed tokens of what each attends to.
    draft_token_budget: most draft tokens of the whole step (free KV, token limit of the engine). num_waiting: requests
    that wait and will find a place as soon as they are prefilled. now: seconds on the host's clock when the step began.

    What callers may ask for, by row; left out, everybody is equal: weights float [R], >= 0, worth of a token; class_ids
    int [R], workload class (0: none named); tpot_targets float [R], wanted seconds per output token (inf: none).
    """

    request_ids: np.ndarray
    context_tokens: np.ndarray
    max_draft_tokens: np.ndarray
    unseen_tokens: np.ndarray
    offers: Offers
    num_prefills: int = 0
    prefill_tokens: int = 0
    prefill_context_tokens: int = 0
    prefill_attended_tokens: float = 0.0
    draft_token_budget: int = UNLIMITED
    num_waiting: int = 0
    now: float = 0.0
    weights: np.ndarray | None = None
    class_ids: np.ndarray | None = None
    tpot_targets: np.ndarray | None = None

    def __post_init__(self):
        defaults = {"weights": (1.0, float), "class_ids": (0, np.int64), "tpot_targets": (np.inf, float)}
        for name, (value, dtype) in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.full(self.num_rows, value, dtype=dtype))

    @property
    def num_rows(self) -> int:
        return len(self.request_ids)

    @cached_property
    def total_context_tokens(self) -> int:
        """Tokens in the KV of all decoding requests."""
        return int(self.context_tokens.sum())

    @property
    def ordinary_tokens(self) -> int:
        """Tokens the target is fed in this step before any draft token."""
        return self.num_rows + self.prefill_tokens


@dataclass(frozen=True)
class DraftPlan:
    """What to draft. lengths: int [R]; use_model: bool [R], True where the draft model runs, False for the offer.

    stop: may end the draft model's drafts earlier, see StopRule.
    """

    lengths: np.ndarray
    use_model: np.ndarray
    stop: StopRule | None = None


@dataclass(frozen=True)
class Drafted:
    """What was drafted. lengths: int [R], at most those of the plan.

    confidence: float [R, K], largest probability of the distribution a token was drawn from, NaN where the drafter has
    none; None if no drafter has any. It is known before the token is drawn, so cutting by it is lossless even for
    sampled drafts (the probability of the drawn token itself would not be).
    """

    lengths: np.ndarray
    confidence: np.ndarray | None = None


@dataclass(frozen=True)
class StepSeconds:
    """Measured wall time of the parts of one step, in seconds."""

    draft: float
    target: float
    host: float

    @property
    def total(self) -> float:
        return self.draft + self.target + self.host


@dataclass(frozen=True)
class StepFeedback:
    """What happened in a step, for learning.

    plan: what was asked. drafted: int [R] draft tokens that existed. verified: int [R] of them fed to the target.
    accepted: int [R] of the verified ones accepted (what a stop rule later dropped is not counted as tested:
    tested[i] says how many positions were truly compared). next_match: int [R], free evidence about the first draft
    token that was *not* verified: 1 the target emitted that very token there, 0 it emitted another, -1 unknown.
    confidence: as in Drafted. divergence: float [R, K], Kullback-Leibler divergence of draft from target distribution
    at each verified position in nats (for a deterministic draft: -log of the target's probability of the token), NaN
    elsewhere, None where the host does not compute it. caught_up, caught_up_matches: int [R], committed tokens the
    draft model has just caught up on, and how many of them it would have guessed; None where the host does not know.
    """

    view: BatchView
    plan: DraftPlan
    drafted: np.ndarray
    verified: np.ndarray
    tested: np.ndarray
    accepted: np.ndarray
    next_match: np.ndarray
    num_emitted: int
    seconds: StepSeconds
    confidence: np.ndarray | None = None
    divergence: np.ndarray | None = None
    caught_up: np.ndarray | None = None
    caught_up_matches: np.ndarray | None = None
