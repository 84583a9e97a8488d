"""The content of one step: its requests, the tokens of each, its drafts, and its results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from smartspec.control import FreeTests, StepSeconds
from smartspec.core.blocks import MemoryOp
from smartspec.core.request import Request


@dataclass(frozen=True)
class Batch:
    """The ordinary tokens of a step."""

    # requests that feed one token, sample after it, and may carry draft tokens
    decoding: tuple[Request, ...] = ()
    # requests that feed num_prefill_tokens[i] tokens of their prompt (or of their recomputed text
    # after a preemption)
    prefill: tuple[Request, ...] = ()
    num_prefill_tokens: tuple[int, ...] = ()
    # KV copies, trims and wipes to carry out, in order, before anything is computed
    memory_ops: tuple[MemoryOp, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.decoding and not self.prefill


@dataclass(frozen=True)
class Draft:
    """A tree of draft tokens after the text of one request; of n nodes, those that are likeliest to
    be reached first."""

    token_ids: np.ndarray  # int32 [n]
    # int32 [n], the node each one follows, -1 for the text itself. A parent stands before its
    # children, and the chance that a node is reached and accepted never increases along the order:
    # the first k nodes are a connected subtree for every k, and the best one of k nodes. The
    # parents of a chain are -1, 0, 1, ...
    parents: np.ndarray
    match_length: int = 0  # see control.records.DrafterView
    # None for a deterministic draft (a point mass), else whatever the host keeps of the
    # distributions the tokens of a chain were drawn from, [n, vocabulary]; of a greedy request's
    # they may be kept too
    probs: Any = None
    # float [n], see control.records.Drafted; None where the drafter has none
    confidence: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        # needed of every row several times a step, and nearly all are this
        if self.parents.base is _CHAIN:
            return not len(self) or self.parents[0] < 0
        return np.array_equal(self.parents, chain_parents(len(self)))

    @property
    def depths(self) -> np.ndarray:
        """Draft tokens on the way from the text to each node, itself included: int64 [n]."""
        depths = np.zeros(len(self) + 1, dtype=np.int64)
        for node, parent in enumerate(self.parents.tolist()):
            depths[node + 1] = depths[parent + 1] + 1
        return depths[1:]

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """Draft tokens that lead from the text to each place after it: none, then those up to every
        node."""
        paths: list[tuple[int, ...]] = [()]
        for parent, token_id in zip(self.parents.tolist(), self.token_ids.tolist(), strict=True):
            paths.append((*paths[parent + 1], token_id))
        return paths


def chain_parents(num_nodes: int) -> np.ndarray:
    """-1, 0, 1, ...: int32 [num_nodes]."""
    return (
        _CHAIN[:num_nodes]
        if num_nodes <= len(_CHAIN)
        else np.arange(-1, num_nodes - 1, dtype=np.int32)
    )


def chain(token_ids: np.ndarray | Sequence[int], **rest) -> Draft:
    """A draft of tokens that follow one another, int [n]. rest: as in Draft."""
    return Draft(np.asarray(token_ids, dtype=np.int32), chain_parents(len(token_ids)), **rest)


def shorten(draft: Draft, length: int) -> Draft:
    """The first length nodes of a draft."""
    if length >= len(draft):
        return draft
    probs = None if draft.probs is None else draft.probs[:length]
    confidence = None if draft.confidence is None else draft.confidence[:length]
    return Draft(
        draft.token_ids[:length], draft.parents[:length], draft.match_length, probs, confidence
    )


def without_nodes(draft: Draft, kept: np.ndarray) -> Draft:
    """The nodes that are kept (bool [n]) of a deterministic draft; with a node its descendants must
    go."""
    if kept.all():
        return draft
    numbers = np.append(np.cumsum(kept) - 1, -1).astype(np.int32)  # the last: of the text, -1
    confidence = None if draft.confidence is None else draft.confidence[kept]
    return Draft(
        draft.token_ids[kept],
        numbers[draft.parents[kept]],
        draft.match_length,
        confidence=confidence,
    )


@lru_cache
def no_tokens(num_rows: int) -> np.ndarray:
    """int64 [num_rows], all 0; the same array for every caller, not to be written to."""
    zeros = np.zeros(num_rows, dtype=np.int64)
    zeros.flags.writeable = False
    return zeros


_CHAIN = np.arange(-1, 255, dtype=np.int32)
NO_DRAFT = chain(np.empty(0, dtype=np.int32))


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probability of a token under the target's unmodified distribution, and the best
    alternatives."""

    logprob: float
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    rank: int | None = None  # of a token of a prompt, 1 for the likeliest


@dataclass(frozen=True)
class Verification:
    """The target's verdict on one request: emitted tokens = accepted drafts, then one recovered or
    bonus token."""

    emitted_token_ids: tuple[int, ...]
    num_accepted: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    # why there is no token after the accepted drafts, None if there is one
    error: str | None = None
    # of a tree, the nodes that were accepted, root first; None where they are the first
    # num_accepted
    accepted_nodes: tuple[int, ...] | None = None
    # whether it was the request's own rules that left no token, not the model
    is_callers: bool = False


@dataclass(frozen=True)
class StepResult:
    """decoding[i] belongs to batch.decoding[i]; prefill[i] to batch.prefill[i], None where its
    prompt goes on.

    free_tests, extras: as in control.records.Outcome. prompt_logprobs[i]: of the next tokens of the
    prompt of batch.prefill[i], as far as they are wanted; empty where none are wanted.
    """

    decoding: tuple[Verification, ...]
    prefill: tuple[Verification | None, ...]
    seconds: StepSeconds
    free_tests: tuple[FreeTests, ...] = ()
    prompt_logprobs: tuple[list[TokenLogprobs], ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestOutput:
    """New tokens of one request in one step, of which the first num_accepted were draft tokens."""

    request: Request
    new_token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: str | None  # None, "stop", "length", "error"
    num_accepted: int = 0


@dataclass(frozen=True)
class StepOutput:
    """Everything a host wants to know about a finished step."""

    outputs: tuple[RequestOutput, ...] = ()
    num_prefill_tokens: int = 0
    num_draft_tokens: int = 0
    num_verified_tokens: int = 0
    num_accepted_tokens: int = 0
    verified_lengths: tuple[int, ...] = ()
    predicted_seconds: float | None = None
    seconds: StepSeconds = field(default_factory=lambda: StepSeconds(0.0, 0.0, 0.0))
