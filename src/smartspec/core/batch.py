"""What one step computes: which requests, how many tokens of each, which drafts, and what came out."""

from dataclasses import dataclass, field

import numpy as np

from smartspec.control.records import StepSeconds
from smartspec.core.blocks import MemoryOp
from smartspec.core.request import Request


@dataclass(frozen=True)
class Batch:
    """The ordinary tokens of a step.

    decoding: requests that feed one token, sample behind it, and may carry draft tokens. prefill: requests that feed
    num_prefill_tokens[i] tokens of their prompt (or of their recomputed text after a preemption). memory_ops: KV
    copies, trims and wipes to carry out, in order, before anything is computed.
    """

    decoding: tuple[Request, ...] = ()
    prefill: tuple[Request, ...] = ()
    num_prefill_tokens: tuple[int, ...] = ()
    memory_ops: tuple[MemoryOp, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.decoding and not self.prefill


@dataclass(frozen=True)
class Draft:
    """Draft tokens of one request, best first in the order they would be emitted.

    token_ids: int32 [k]. evidence: strength class, see control.records.Offers. probs: None for a deterministic draft
    (a point mass), else whatever the host keeps of the distributions the tokens were drawn from, [k, vocabulary].
    confidence: float [k], see control.records.Drafted; None where the drafter has none.
    """

    token_ids: np.ndarray
    evidence: int = 0
    probs: object | None = None
    confidence: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


NO_DRAFT = Draft(token_ids=np.empty(0, dtype=np.int32))


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probability of an emitted token under the target's unmodified distribution, and the best alternatives."""

    logprob: float
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Verification:
    """What the target said about one request: emitted tokens = accepted drafts, then one recovered or bonus token.

    error: why there is no token behind the accepted drafts, None if there is one.
    """

    emitted_token_ids: tuple[int, ...]
    num_accepted: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None


@dataclass(frozen=True)
class StepResult:
    """decoding[i] belongs to batch.decoding[i]; prefill[i] to batch.prefill[i], None where its prompt goes on.

    divergence, caught_up, caught_up_matches: as in control.records.StepFeedback; None where the executor has none.
    """

    decoding: tuple[Verification, ...]
    prefill: tuple[Verification | None, ...]
    seconds: StepSeconds
    divergence: np.ndarray | None = None
    caught_up: np.ndarray | None = None
    caught_up_matches: np.ndarray | None = None


@dataclass(frozen=True)
class RequestOutput:
    """New tokens of one request in one step. finish_reason: None, "stop", "length", "error"."""

    request: Request
    new_token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: str | None


@dataclass(frozen=True)
class StepOutput:
    """Everything a host wants to know about a finished step."""

    outputs: tuple[RequestOutput, ...] = ()
    num_prefill_tokens: int = 0
    num_draft_tokens: int = 0
    num_verified_tokens: int = 0
    num_accepted_tokens: int = 0
    verified_lengths: tuple[int, ...] = ()
    predicted_seconds: float = 0.0
    seconds: StepSeconds = field(default_factory=lambda: StepSeconds(0.0, 0.0, 0.0))
