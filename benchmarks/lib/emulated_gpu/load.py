"""Requests for an engine, how they come, and what is measured of them."""

import time
from dataclasses import dataclass, field

import numpy as np
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from lib.emulated_gpu.cells import Cell

FEWEST_WARM, FEWEST_MEASURED = 3, 12  # requests


@dataclass(frozen=True)
class Load:
    """num_warm requests end before anything counts, then num_measured do. concurrency: None where requests come at
    given moments. prompt, output: tokens, int [N]; arrival: seconds, float [N]."""

    num_warm: int
    num_measured: int
    prompt: np.ndarray
    output: np.ndarray
    concurrency: int | None = None
    arrival: np.ndarray | None = None

    @staticmethod
    def of(cell: Cell, warm_waves: float, waves: float) -> "Load":
        """ValueError on an unknown load."""
        kind, _, value = cell.load.partition(":")
        if kind != "closed":
            raise ValueError(f"load {cell.load!r}: use closed:N, poisson:RATE or trace:FILE")
        level = int(value)
        warm, measured = max(FEWEST_WARM, round(warm_waves * level)), max(FEWEST_MEASURED, round(waves * level))
        count = warm + measured + level
        rng = np.random.default_rng([cell.seed, 7])
        lengths = [
            rng.integers(mean // 2, 3 * mean // 2, size=count, endpoint=True)
            for mean in (cell.prompt_tokens, cell.output_tokens)
        ]
        return Load(warm, measured, *lengths, concurrency=level)


@dataclass
class Request:
    """Moments are of time.perf_counter()."""

    came: float
    num_tokens: int = 0
    first: float = 0.0
    last: float = 0.0


@dataclass
class Window:
    """What is counted between two moments."""

    began: float = 0.0
    tokens: int = 0
    ended: list[Request] = field(default_factory=list)


class Client:
    """Sends a load to an engine and steps it, as the engine's own loop does."""

    def __init__(self, core, gpu, load: Load):
        self._core, self._gpu, self._load = core, gpu, load
        self._requests: dict[str, Request] = {}
        self._sent = 0
        self._rng = np.random.default_rng(0)

    def run(self, num_ended: int) -> Window:
        """Go on until so many more requests have ended."""
        window = Window(began=time.perf_counter())
        while len(window.ended) < num_ended:
            self._send()
            if not self._core.scheduler.has_requests() and not self._core.batch_queue:
                self._gpu.clock.rest()
                continue
            outputs, executed = self._core.step_fn()
            self._core.post_step(executed)
            self._note(outputs or {}, window)
        return window

    def _send(self) -> None:
        """All requests that are due."""
        while self._sent < len(self._load.prompt) and self._is_due():
            number = self._sent
            self._sent += 1
            name = str(number)
            prompt = self._rng.integers(10, 1000, self._load.prompt[number]).tolist()
            params = SamplingParams(temperature=0.0, max_tokens=int(self._load.output[number]), ignore_eos=True)
            request = EngineCoreRequest(
                request_id=name,
                prompt_token_ids=prompt,
                mm_features=None,
                sampling_params=params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
            self._requests[name] = Request(time.perf_counter())
            self._core.add_request(*self._core.preprocess_add_request(request))

    def _is_due(self) -> bool:
        return len(self._requests) < self._load.concurrency

    def _note(self, outputs: dict, window: Window) -> None:
        now = time.perf_counter()
        for group in outputs.values():
            for output in group.outputs:
                request = self._requests[output.request_id]
                request.first = request.first or now
                request.last = now
                request.num_tokens += len(output.new_token_ids)
                window.tokens += len(output.new_token_ids)
                if output.finish_reason is not None:
                    window.ended.append(self._requests.pop(output.request_id))
