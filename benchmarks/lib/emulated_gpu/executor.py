"""An executor for vLLM that computes nothing: its answers come from a Acceptance, at the moments of
a GPU.

Its own work in a step takes the place of what vLLM's model runner does on the host before it starts
a pass.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from lib.emulated_gpu.acceptance import Acceptance
from lib.emulated_gpu.adaptive import AdaptiveVerification
from lib.emulated_gpu.clock import Clock, ReadyAt, wait_until
from lib.emulated_gpu.step_time import GPUTime, StepSize
from smartspec.vllm_plugin.step.adaptive import ADMITTED, COSTS


@dataclass
class GPU:
    """What an executor emulates. captured: tokens per request for which full graphs of decoding
    exist. has_drafter: whether it drafts. compares: whether drafts come from the scheduler.
    verification: None where all drafts are verified. log: by step, requests, fed tokens, whether a
    full graph was used, draft tokens made, draft tokens verified, and the moment of its end."""

    time: GPUTime
    acceptance: Acceptance
    clock: Clock
    captured: frozenset[int]
    has_drafter: bool
    compares: bool = False
    verification: AdaptiveVerification | None = None
    log: list[tuple[int, int, bool, int, int, float]] = field(default_factory=list)
    began: float = 0.0  # from which the acceptance counts its seconds


@dataclass
class Row:
    """A request. computed: tokens in its KV. length: known tokens, prompt and emitted ones."""

    number: int
    prompt: int
    computed: int
    length: int


class EmulatedExecutor(Executor):
    """vLLM makes one of a class: executor_of() makes a class for each GPU."""

    gpu: GPU
    supports_pp = False
    has_admitted_counts = True  # as SmartSpec's executor does for vLLM's workers

    def _init_executor(self) -> None:
        self._rows: dict[str, Row] = {}
        self._pending: tuple[ModelRunnerOutput, float] | None = None
        self._last: tuple[list[str], int] = ([], 0)

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    @property
    def supported_tasks(self):
        return ("generate",)

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
        """The workers' answers to what vLLM asks at the start. One layer stands for all."""
        block_size = self.cache_config.block_size
        spec = FullAttentionSpec(
            block_size=block_size, num_kv_heads=8, head_size=128, dtype=torch.bfloat16
        )
        answers = {
            "get_kv_cache_spec": [{"layer.attn": spec}],
            "determine_available_memory": [1 << 40],
            "get_supported_kv_cache_layouts": [["LBNHC", "LBHNC"]],
            "compile_or_warm_up_model": [],
        }
        return answers.get(method if isinstance(method, str) else method.__name__, [None])

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...

    def execute_model(self, scheduler_output, non_block=False):
        self._follow(scheduler_output)
        costs = vars(scheduler_output).pop(COSTS, None)
        if costs is not None and self.gpu.verification is not None:
            self.gpu.verification.take_costs(costs.draft, costs.verify)
        if not scheduler_output.total_num_scheduled_tokens:
            empty = ModelRunnerOutput([], {})
            return ReadyAt(empty, 0.0) if non_block else empty
        self._pending = self._run(scheduler_output)
        return ReadyAt(None, 0.0) if non_block else None

    def sample_tokens(self, grammar_output, non_block=False):
        output, ready = self._pending
        if non_block:
            return ReadyAt(output, ready)
        wait_until(ready)
        return output

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """Drafts on the host: without asynchronous scheduling. A wrong token is one that the target
        never says."""
        if not self.gpu.has_drafter:
            return None
        wait_until(self.gpu.clock.free)
        names, longest = self._last
        rows = [self._rows[name] for name in names]
        numbers, positions = _columns(rows)
        drafted = np.minimum(self.gpu.acceptance.num_drafted(numbers, positions), longest).tolist()
        right = self.gpu.acceptance.num_right(numbers, positions, self._now()).tolist()
        drafts = []
        for row, count, num_right in zip(rows, drafted, right, strict=True):
            told = self.gpu.acceptance.tokens(
                row.number, row.length - row.prompt, min(count, num_right)
            )
            drafts.append(told + [1] * (count - len(told)))
        return DraftTokenIds(list(names), drafts)

    def _follow(self, output) -> None:
        """Requests that begin, go on after preemption, or have ended."""
        for name in output.finished_req_ids:
            if row := self._rows.pop(name, None):
                self.gpu.acceptance.end(row.number)
        for new in output.scheduled_new_reqs:
            told = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
            number = int(name_number(new.req_id))
            if new.req_id not in self._rows:
                self.gpu.acceptance.begin(number)
            self._rows[new.req_id] = Row(
                number, len(new.prompt_token_ids), new.num_computed_tokens, len(told)
            )
        cached = output.scheduled_cached_reqs
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                self._rows[name].computed = computed

    def _now(self) -> float:
        return self.gpu.clock.free - self.gpu.began

    def _run(self, output) -> tuple[ModelRunnerOutput, float]:
        """What a step brings, and the moment at which the host sees it."""
        gpu, names = self.gpu, list(output.num_scheduled_tokens)
        drafts, rows = output.scheduled_spec_decode_tokens, [self._rows[name] for name in names]
        fed = np.fromiter(output.num_scheduled_tokens.values(), np.int64, len(names))
        drafted = np.fromiter((len(drafts.get(name, ())) for name in names), np.int64, len(names))
        computed = np.array([row.computed for row in rows], dtype=np.int64)
        samples = computed + fed - drafted >= np.array([row.length for row in rows], dtype=np.int64)
        numbers, positions = _columns(rows)
        verified, is_captured = drafted, len(set(fed.tolist())) == 1 and int(fed[0]) in gpu.captured
        if gpu.verification is not None and drafted.any():
            confidence = gpu.acceptance.confidence(numbers, positions, self._now())
            verified = gpu.verification.cut(
                names, fed - drafted, drafted, int(samples.sum()), confidence
            )
            is_captured = bool((fed - drafted == 1).all())  # its graphs take any mix of lengths
        right = (
            self._compared(names, drafts)
            if gpu.compares
            else gpu.acceptance.num_right(numbers, positions, self._now())
        )
        accepted = np.minimum(right, verified) * samples
        made = output.num_spec_tokens_to_schedule if gpu.has_drafter else 0
        size = step_size(computed, fed - drafted + verified, samples, verified, is_captured, made)
        target = gpu.time.target_seconds(size)
        start = gpu.clock.run(target + gpu.time.draft_seconds(size))
        gpu.log.append(
            (len(names), size.fed, is_captured, made, int(verified.sum()), gpu.clock.free)
        )
        told = self._emit(rows, samples.tolist(), accepted.tolist(), (computed + fed).tolist())
        self._last = (
            [
                name
                for name, is_decoding in zip(names, samples.tolist(), strict=True)
                if is_decoding
            ],
            made,
        )
        result = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, told)
        if gpu.verification is not None and drafted.any():
            setattr(result, ADMITTED, verified.tolist())
        return result, start + target

    def _compared(self, names: list[str], drafts: dict[str, list[int]]) -> np.ndarray:
        """Leading right tokens of each draft of the scheduler's, int [R]."""
        right = []
        for row, draft in ((self._rows[name], drafts.get(name, ())) for name in names):
            told = self.gpu.acceptance.tokens(row.number, row.length - row.prompt, len(draft))
            right.append(
                next(
                    (
                        n
                        for n, pair in enumerate(zip(draft, told, strict=True))
                        if pair[0] != pair[1]
                    ),
                    len(draft),
                )
            )
        return np.array(right, dtype=np.int64)

    def _emit(
        self, rows: list[Row], samples: list[bool], accepted: list[int], computed: list[int]
    ) -> list[list[int]]:
        told = []
        for row, is_sampled, count, end in zip(rows, samples, accepted, computed, strict=True):
            if not is_sampled:
                row.computed = end
                told.append([])
                continue
            told.append(self.gpu.acceptance.tokens(row.number, row.length - row.prompt, count + 1))
            row.computed = row.length + count
            row.length += count + 1
        return told


def executor_of(gpu: GPU) -> type[EmulatedExecutor]:
    """A class to hand to vLLM."""
    return type("EmulatedExecutorOfGPU", (EmulatedExecutor,), {"gpu": gpu})


def name_number(name: str) -> str:
    """The number of a request: vLLM's names are NUMBER, or NUMBER-ANYTHING."""
    return name.partition("-")[0]


def step_size(
    computed: np.ndarray,
    fed: np.ndarray,
    samples: np.ndarray,
    verified: np.ndarray,
    is_captured: bool,
    made: int,
) -> StepSize:
    """All arrays: by request, int [R]; samples: bool [R]."""
    attended = float((fed * (computed + (fed + 1) / 2)).sum())
    scored = int(samples.sum() + (verified * samples).sum())
    return StepSize(
        int(fed.sum()), len(fed), int((computed + fed).sum()), attended, scored, is_captured, made
    )


def _columns(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(row.number, row.length - row.prompt) for row in rows]
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return columns[:, 0].copy(), columns[:, 1].copy()
