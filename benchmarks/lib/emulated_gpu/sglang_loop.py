"""SGLang's overlapped scheduler loop and its real AdaptiveController, on an emulated GPU in virtual
time.

A step is launched before the one that runs is waited for (SGLang 0.5.23: event_loop_overlap in
srt/managers/scheduler.py). Requests that have ended therefore run in one more step. Prefill goes
first. The worker only notes the steps that it is switched to.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from lib.emulated_gpu.acceptance import StatedAcceptance
from lib.emulated_gpu.step_time import GPUTime, StepSize

# SGLang's, with speculation: srt/arg_groups/cuda_graph_hook.py.
GRAPH_SIZES = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
MAX_PREFILL_TOKENS = 8192
HOST_SECONDS = 1e-3  # of SGLang's own loop in every step: assumed


@dataclass
class Row:
    """A request. context: tokens in its KV. emitted, wanted: tokens of its answer."""

    number: int
    context: int
    wanted: int
    emitted: int = 0


@dataclass
class VirtualClock:
    """now: the host's, in seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Worker:
    """Stands in for EAGLEWorkerV2. adaptive_controller: None where the number of steps is fixed;
    spent: real seconds of its calls."""

    speculative_num_steps: int
    adaptive_controller: object = None
    server_args: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(tp_size=1))
    num_switches: int = 0
    spent: float = 0.0

    def build_adaptive_runtime_state(
        self, speculative_num_steps, speculative_num_draft_tokens, cuda_graph_bs=None
    ):
        from sglang.srt.speculative.adaptive_runtime_state import SpecRuntimeState

        return SpecRuntimeState(
            speculative_num_steps, speculative_num_draft_tokens, None, None, None, None, None, None
        )

    def apply_runtime_state(self, state) -> None:
        self.num_switches += state.speculative_num_steps != self.speculative_num_steps
        self.speculative_num_steps = state.speculative_num_steps


@dataclass
class Launched:
    """A batch on the GPU. accepted: draft tokens by request, None of prefill. end: seconds."""

    rows: list[Row]
    end: float
    accepted: np.ndarray | None = None


class Loop:
    """One server under a closed loop of requests. time: of the GPU, with or without a drafter."""

    def __init__(
        self, worker: Worker, time: GPUTime, acceptance: StatedAcceptance, clock: VirtualClock
    ):
        self.worker, self._time, self._acceptance, self._clock = worker, time, acceptance, clock
        self._waiting: list[Row] = []
        self._running: list[Row] = []
        self._free = 0.0  # when the GPU has done all that was launched
        self.tokens = self.num_steps = self.step_sum = 0
        self.ended: list[Row] = []

    def add(self, row: Row) -> None:
        self._acceptance.begin(row.number)
        self._waiting.append(row)

    def run(self, is_done: Callable[[], bool], next_row: Callable[[], Row]) -> None:
        """Until is_done(); next_row takes the place of each request that ends."""
        last: Launched | None = None
        while not is_done():
            self._clock.now += HOST_SECONDS
            batch = self._prefill() if self._waiting else self._decode()
            if last is not None:
                self._clock.now = max(self._clock.now, last.end)
                self._process(last, next_row)
            last = batch

    def _prefill(self) -> Launched:
        rows, tokens = [], 0
        while self._waiting and (
            not rows or tokens + self._waiting[0].context <= MAX_PREFILL_TOKENS
        ):
            rows.append(self._waiting.pop(0))
            tokens += rows[-1].context
        contexts = np.array([row.context for row in rows])
        attended = float((contexts * (contexts + 1) / 2).sum())
        size = StepSize(tokens, len(rows), tokens, attended, len(rows), is_captured=False)
        for row in rows:
            row.emitted = 1
        self._running += rows
        return Launched(rows, self._launch(size))

    def _decode(self) -> Launched:
        # A request that has ended in the step under way is not known to have.
        rows, worker = list(self._running), self.worker
        self._call("activate_step_by_batch", len(rows))
        steps = worker.speculative_num_steps
        padded = next((size for size in GRAPH_SIZES if size >= len(rows)), len(rows))
        context = sum(row.context for row in rows) + len(rows) * (1 + steps)
        fed = padded * (1 + steps)
        size = StepSize(
            fed, padded, context, context * (1.0 + steps), fed, is_captured=True, draft_tokens=steps
        )
        end = self._launch(size)
        numbers, positions = np.array([(row.number, row.emitted) for row in rows]).T
        right = self._acceptance.num_right(numbers.copy(), positions.copy(), end)
        accepted = np.minimum(right, steps)
        for row, count in zip(rows, accepted.tolist(), strict=True):
            row.context += count + 1
            row.emitted += count + 1
        self.num_steps, self.step_sum = self.num_steps + 1, self.step_sum + steps
        return Launched(rows, end, accepted)

    def _launch(self, size: StepSize) -> float:
        start = max(self._free, self._clock.now)
        self._free = start + self._time.target_seconds(size) + self._time.draft_seconds(size)
        return self._free

    def _process(self, batch: Launched, next_row: Callable[[], Row]) -> None:
        if batch.accepted is None:
            self.tokens += len(batch.rows)
            self._end_prefill()
            return
        self._call("on_verify_complete", batch.accepted.tolist(), len(batch.rows))
        running = {id(row) for row in self._running}
        for row, count in zip(batch.rows, batch.accepted.tolist(), strict=True):
            if id(row) not in running:  # it has run in one more step
                continue
            self.tokens += count + 1
            if row.emitted >= row.wanted:
                self._running.remove(row)
                self._acceptance.end(row.number)
                self.ended.append(row)
                self.add(next_row())

    def _call(self, name: str, *arguments) -> None:
        """Of the controller. Its real time is the host's."""
        if self.worker.adaptive_controller is None:
            return
        began = time.perf_counter()
        getattr(self.worker.adaptive_controller, name)(*arguments)
        spent = time.perf_counter() - began
        self.worker.spent += spent
        self._clock.now += spent

    def _end_prefill(self) -> None:
        from smartspec.sglang_plugin.plugin import end_prefill

        end_prefill(
            SimpleNamespace(model_worker=self.worker), None, SimpleNamespace(copy_done=None)
        )
