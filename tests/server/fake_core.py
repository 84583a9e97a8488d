"""A real EngineCore on a fake model: it says the prompt back, token by token, and then stops."""

import threading
import time

import numpy as np

from smartspec.control.records import (
    BatchView,
    Drafted,
    DrafterQuery,
    DrafterView,
    Plan,
    StepSeconds,
)
from smartspec.core.batch import (
    Batch,
    Draft,
    StepResult,
    TokenLogprobs,
    Verification,
    chain,
    shorten,
)
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.scheduler import Scheduler

BLOCK_SIZE = 16
OTHER_TOKEN_ID = 100


class EchoExecutor:
    """Emits the prompt's tokens, over and over with an end of sequence between; drafts are always
    right.

    num_steps: steps begun. bad_token_id: prompts that hold it have no prediction after their third
    output token, which is_callers says to be their own fault or the model's.
    """

    def __init__(self, eos_token_id: int):
        self.eos_token_id = eos_token_id
        self.num_steps = 0
        self.clock = time.monotonic
        self.bad_token_id: int | None = None
        self.is_callers = False
        self.released: list[int] = []
        self._gate = threading.Event()
        self._gate.set()
        self._num_free_steps = 0
        self._failing_step = 0

    def hold(self, after: int = 0) -> None:
        """Steps do not end until released, but for the next `after`."""
        self._num_free_steps = self.num_steps + after
        self._gate.clear()

    def let_go(self) -> None:
        """Steps end again."""
        self._gate.set()

    def fail(self, after: int = 0) -> None:
        """The step after the next `after` raises."""
        self._failing_step = self.num_steps + after + 1

    def begin_step(self, batch: Batch, now: float) -> tuple[DrafterQuery, ...]:
        self.drafts = tuple(
            chain(np.array(self._next_tokens(request, 8))) for request in batch.decoding
        )
        lengths = np.array([len(draft) for draft in self.drafts], dtype=np.int64)
        return (lambda is_queried: DrafterView(lengths * is_queried),)

    def draft(self, batch: Batch, plan: Plan) -> tuple[Draft, ...]:
        return tuple(map(shorten, self.drafts, plan.lengths.tolist()))

    def verify(self, batch: Batch, drafts: tuple[Draft, ...]) -> StepResult:
        self.num_steps += 1
        if self.num_steps > self._num_free_steps:
            assert self._gate.wait(timeout=60), "a test forgot to let go"
        if self.num_steps == self._failing_step:
            raise RuntimeError("the secret reason")
        decoding = tuple(self._emit(r, len(d)) for r, d in zip(batch.decoding, drafts, strict=True))
        prefill = tuple(
            self._emit(r, 0) if r.num_computed_tokens + n == r.num_tokens else None
            for r, n in zip(batch.prefill, batch.num_prefill_tokens, strict=True)
        )
        scored = tuple(map(_prompt_logprobs, batch.prefill, batch.num_prefill_tokens))
        return StepResult(decoding, prefill, StepSeconds(0.0, 0.001, 0.0), prompt_logprobs=scored)

    def release(self, request_id: int) -> None:
        self.released.append(request_id)

    def _next_tokens(self, request: Request, count: int) -> list[int]:
        reply = [*request.tokens[: request.num_prompt_tokens].tolist(), self.eos_token_id]
        return [reply[(request.num_output_tokens + i) % len(reply)] for i in range(count)]

    def _emit(self, request: Request, num_accepted: int) -> Verification:
        token_ids = tuple(self._next_tokens(request, num_accepted + 1))
        left = 3 - request.num_output_tokens
        if (
            self.bad_token_id in request.tokens[: request.num_prompt_tokens]
            and left <= num_accepted
        ):
            error = "no token is left" if self.is_callers else "the model's logits are NaN"
            return Verification(token_ids[:left], left, error=error, is_callers=self.is_callers)
        logprobs = None
        if request.params.logprobs is not None:
            logprobs = tuple(_logprobs(token_id, request.params.logprobs) for token_id in token_ids)
        return Verification(token_ids, num_accepted, logprobs)


def _prompt_logprobs(request: Request, num_tokens: int) -> list[TokenLogprobs]:
    end = min(request.num_computed_tokens + num_tokens, request.num_prompt_tokens - 1)
    num_top = request.params.prompt_logprobs or 0
    top = (OTHER_TOKEN_ID,)[:num_top], (-0.25,)[:num_top]
    wanted = range(len(request.prompt_logprobs), end) if request.num_unscored_tokens else ()
    return [TokenLogprobs(-0.5, *top, rank=2) for _ in wanted]


def _logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    return TokenLogprobs(-0.5, (token_id, OTHER_TOKEN_ID)[:num_top], (-0.5, -1.5)[:num_top])


class FixedController:
    """The same draft length for all requests."""

    predicted_seconds = 0.002

    def __init__(self, length: int):
        self.length = length

    def plan(self, view: BatchView) -> Plan:
        view = view.queried(True)
        lengths = np.minimum(view.draft_lengths[0], self.length)
        return Plan(lengths=lengths, drafter=np.zeros(view.num_rows, dtype=int))

    def cut(self, plan: Plan, drafted: Drafted) -> np.ndarray:
        return drafted.lengths

    def learn(self, plan, outcome) -> None:
        pass

    def end(self, request_id) -> None:
        pass

    def explain(self) -> dict | None:
        """As of a controller that planned one request's draft."""
        uniform = [100.0 + 25 * k for k in range(9)]
        return {
            "num_rows": 1,
            "prefill_tokens": 0,
            "predicted_goodput": 300.0,
            "predicted_goodput_off": 100.0,
            "lengths": [self.length],
            "verified": [self.length],
            "accepted": [self.length],
            "what_if": {"steps_ago": 0, "planned": 300.0, "uniform": uniform},
            "predicted_seconds": 0.002,
            "measured_seconds": 0.001,
            "queried": True,
            "reason": None,
        }

    def state(self) -> dict:
        return {"policy": f"fixed:{self.length}", "decisions": []}


def make_core(
    eos_token_id: int,
    *,
    draft_length: int = 0,
    max_batch: int = 4,
    max_model_len: int = 512,
    kv_tokens: int = 2048,
) -> EngineCore:
    """The core; its executor and controller are the fakes above."""
    scheduler = Scheduler(
        BlockManager(kv_tokens // BLOCK_SIZE, BLOCK_SIZE, max_batch),
        max_batched_tokens=256,
        max_model_len=max_model_len,
        max_draft_tokens=8,
    )
    return EngineCore(scheduler, EchoExecutor(eos_token_id), FixedController(draft_length))
