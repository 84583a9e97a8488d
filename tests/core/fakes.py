"""A language model made of a hash, and an executor that runs it: real scheduling and step loop, no
tensors.

The executor keeps the text each slot holds, moves it as the memory operations say, and fails loudly
if the scheduler ever makes it continue from text that is not there: the sharpest check of slots,
copies, rollback and preemption.
"""

import numpy as np

from smartspec.control import DrafterQuery, DrafterView, Plan, StepSeconds
from smartspec.core.batch import NO_DRAFT, Batch, Draft, StepResult, Verification, chain, shorten
from smartspec.core.blocks import BlockManager, PrefixCopy
from smartspec.core.draft_columns import lengths_of
from smartspec.core.engine_core import EngineCore, StepOutput
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.drafters.model_free import free_tests

VOCABULARY = 50


def next_token(token_ids) -> int:
    """The hash model's greedy continuation; depends on the whole text."""
    state = 17
    for token_id in token_ids:
        state = (state * 31 + int(token_id) + 7) % 100_003
    return state % VOCABULARY


def continuation(prompt: list[int], num_tokens: int) -> list[int]:
    """What greedy decoding emits without any speculation."""
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(next_token(text))
    return text[len(prompt) :]


class FakeExecutor:
    """accuracy: chance that a draft token is the right one. Seconds are made up: 1 per token.

    failing: what raises, once: "begin_step" (before any memory operation), "draft", "verify". bad:
    requests by id, and the length of text after which the model has no prediction for them.
    """

    def __init__(self, num_slots: int, accuracy: float = 0.7, seed: int = 0):
        self.slots: list[list[int]] = [[] for _ in range(num_slots)]
        self.random = np.random.default_rng(seed)
        self.accuracy = accuracy
        self.released: list[int] = []
        self.failing: str | None = None
        self.bad: dict[int, int] = {}

    def begin_step(self, batch: Batch, now: float) -> tuple[DrafterQuery, ...]:
        self._fail_in("begin_step")
        for op in batch.memory_ops:
            if isinstance(op, PrefixCopy):
                self.slots[op.target_slot] = self.slots[op.source_slot][: op.num_tokens]
            else:
                self.slots[op.slot] = self.slots[op.slot][: op.num_tokens]
        self.drafts = tuple(self._guess(request) for request in batch.decoding)
        lengths = lengths_of(self.drafts)
        return (lambda is_queried: DrafterView(lengths * is_queried, np.minimum(lengths, 1)),)

    def _guess(self, request: Request) -> Draft:
        text = request.token_ids.tolist()
        for _ in range(self.random.integers(0, 6)):
            right = self.random.random() < self.accuracy
            text.append(next_token(text) if right else int(self.random.integers(VOCABULARY)))
        return chain(np.array(text[request.num_tokens :], dtype=np.int32), match_length=1)

    def draft(self, batch: Batch, plan: Plan) -> tuple[Draft, ...]:
        self._fail_in("draft")
        return tuple(map(shorten, self.drafts, plan.lengths.tolist()))

    def verify(self, batch: Batch, drafts: tuple[Draft, ...]) -> StepResult:
        self._fail_in("verify")
        decoding = [
            self._verify(r, 1, draft) for r, draft in zip(batch.decoding, drafts, strict=True)
        ]
        chunks = zip(batch.prefill, batch.num_prefill_tokens, strict=True)
        prefill = [self._verify(r, n, NO_DRAFT) for r, n in chunks]
        num_tokens = len(drafts) + sum(map(len, drafts)) + sum(batch.num_prefill_tokens)
        lengths = lengths_of(drafts)
        free = free_tests(self.drafts, lengths, decoding)
        return StepResult(
            tuple(decoding),
            tuple(prefill),
            StepSeconds(0.0, float(num_tokens), 0.0),
            free_tests=(free,),
        )

    def _verify(self, request: Request, num_tokens: int, draft: Draft) -> Verification | None:
        start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
        kv = self.slots[request.slot]
        assert kv[:start] == request.tokens[:start].tolist(), (
            "the slot does not hold the request's text"
        )
        kv[start:] = [*request.tokens[start:end].tolist(), *draft.token_ids.tolist()]
        if end < request.num_tokens:
            return None
        emitted, text = [], kv[:end]
        for token_id in [*draft.token_ids.tolist(), None]:
            if len(text) == self.bad.get(request.request_id):
                return Verification(tuple(emitted), len(emitted), error="no prediction")
            emitted.append(next_token(text))
            if token_id != emitted[-1]:
                return Verification(tuple(emitted), len(emitted) - 1)
            text.append(token_id)

    def _fail_in(self, name: str) -> None:
        if self.failing == name:
            self.failing = None
            raise OSError(f"{name} failed")

    def release(self, request_id: int) -> None:
        self.released.append(request_id)


class RandomController:
    """Lengths that change at random in every step, within the caps; records the outcome."""

    predicted_seconds = 1.0

    def __init__(self, seed: int = 0):
        self.random = np.random.default_rng(seed)
        self.outcomes = []
        self.forgotten: list[int] = []

    def plan(self, view) -> Plan:
        view = view.queried(True)
        lengths = self.random.integers(0, view.draft_lengths[0] + 1)
        return Plan(lengths=lengths, drafter=np.zeros(view.num_rows, dtype=int), view=view)

    def cut(self, plan, drafted) -> np.ndarray:
        return self.random.integers(0, drafted.lengths + 1)

    def learn(self, plan, outcome) -> None:
        self.outcomes.append(outcome)

    def end(self, request_id) -> None:
        self.forgotten.append(request_id)


def make_core(
    controller=None, *, num_blocks=40, block_size=4, num_slots=4, budget=16, seed=0, threshold=None
) -> EngineCore:
    """The step loop on the hash model; with random lengths where no controller is given."""
    scheduler = Scheduler(
        BlockManager(num_blocks, block_size, num_slots),
        max_batched_tokens=budget,
        max_model_len=64,
        max_draft_tokens=5,
        long_prefill_token_threshold=threshold,
    )
    executor = FakeExecutor(num_slots, seed=seed)
    return EngineCore(scheduler, executor, controller or RandomController(seed))


def make_request(
    request_id: int, prompt, max_tokens: int = 10, stop: tuple[int, ...] = (), **more
) -> Request:
    params, stop_ids = SamplingParams(max_tokens=max_tokens), frozenset(stop)
    return Request(request_id, prompt, params, seed=0, stop_token_ids=stop_ids, **more)


def expected_of(request: Request) -> list[int]:
    """What a request is given if nothing cuts it short."""
    prompt = request.tokens[: request.num_prompt_tokens].tolist()
    return continuation(prompt, request.params.max_tokens)


def serve(core: EngineCore, requests) -> list[StepOutput]:
    """Serve requests to their ends and check that each got its plain continuation; return what the
    steps said."""
    for request in requests:
        core.add_request(request)
    outputs = []
    while core.has_work:
        outputs.append(core.step(float(len(outputs))))
    for request in requests:
        assert request.output_token_ids.tolist() == expected_of(request)
    return outputs
