"""One generation: its tokens, how far they are computed, and why it ended."""

from collections.abc import Sequence
from enum import Enum
from functools import cached_property

import numpy as np

from smartspec.core.grammar import Grammar
from smartspec.core.origin import UNKNOWN_ORIGIN, Origin
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.speculation import NO_OPTIONS, SpeculationOptions


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """A request's state. Progress is one counter: num_computed_tokens catches up with num_tokens.

    request_id: int, unique for the life of the engine. tokens: int32 [capacity], prompt then
    output; only the first num_tokens are meaningful. slot: index of its place in the KV cache while
    running, else None. grammar: what its output is held to, its own copy. prompt_logprobs: where
    wanted, of the prompt's second token and those after it, as far as they are known
    (core.batch.TokenLogprobs).
    """

    def __init__(
        self,
        request_id: int,
        prompt_token_ids: Sequence[int] | np.ndarray,
        params: SamplingParams,
        *,
        seed: int,
        stop_token_ids: frozenset[int] = frozenset(),
        speculation: SpeculationOptions = NO_OPTIONS,
        origin: Origin = UNKNOWN_ORIGIN,
        grammar: Grammar | None = None,
    ):
        if not len(prompt_token_ids):
            raise ValueError("the prompt is empty: it must hold at least one token")
        self.request_id = request_id
        self.params = params
        self.seed = seed
        self.stop_token_ids = stop_token_ids
        self.speculation = speculation
        self.origin = origin
        self.grammar = grammar
        self.class_id = 0  # number of its workload class, given by the scheduler
        self.num_prompt_tokens = len(prompt_token_ids)
        self.max_num_tokens = self.num_prompt_tokens + params.max_tokens
        self.tokens = np.empty(self.max_num_tokens, dtype=np.int32)
        self.tokens[: self.num_prompt_tokens] = prompt_token_ids
        self.num_tokens = self.num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.accepted_prediction_tokens = 0  # of drafts from speculation.predicted_token_ids
        self.rejected_prediction_tokens = 0
        self.first_step: float | None = None  # when it began, on the clock of EngineCore.step
        self.status = RequestStatus.WAITING
        self.slot: int = None  # type: ignore[assignment]
        self.prompt_logprobs: list = []
        self.finish_reason: str | None = None
        self.error: str | None = None  # what went wrong, where finish_reason is "error"
        self.error_is_callers = False  # its own options are the cause

    @property
    def token_ids(self) -> np.ndarray:
        """int32 [num_tokens], prompt and output (a view, not a copy)."""
        return self.tokens[: self.num_tokens]

    @property
    def output_token_ids(self) -> np.ndarray:
        return self.tokens[self.num_prompt_tokens : self.num_tokens]

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @cached_property
    def sorted_stop_token_ids(self) -> np.ndarray:
        """int64 [S]."""
        return np.array(sorted(self.stop_token_ids), dtype=np.int64)

    @property
    def has_logit_rules(self) -> bool:
        return self.grammar is not None or self.params.has_logit_rules

    @property
    def num_unscored_tokens(self) -> int:
        """Tokens of the prompt whose log-probabilities are wanted and not known yet."""
        wanted = self.params.prompt_logprobs is not None
        return self.num_prompt_tokens - 1 - len(self.prompt_logprobs) if wanted else 0

    @property
    def finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def append(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Append emitted tokens up to the first stop token or the length limit; return those kept.

        Sets finish_reason ("stop" or "length") when one of them ends the request.
        """
        kept = token_ids[: self.max_num_tokens - self.num_tokens]
        if not self.stop_token_ids.isdisjoint(kept):
            num_kept = 1 + next(
                i for i, token_id in enumerate(kept) if token_id in self.stop_token_ids
            )
            kept, self.finish_reason = kept[:num_kept], "stop"
        self.tokens[self.num_tokens : self.num_tokens + len(kept)] = kept
        self.num_tokens += len(kept)
        if self.grammar is not None:
            self.grammar.accept(kept)
        if self.num_tokens == self.max_num_tokens and self.finish_reason is None:
            self.finish_reason = "length"
        return kept

    def fail(self, error: str, is_callers: bool = False) -> None:
        """End with finish_reason "error", unless the tokens so far have ended the request
        already."""
        if self.finish_reason is None:
            self.finish_reason, self.error, self.error_is_callers = "error", error, is_callers
