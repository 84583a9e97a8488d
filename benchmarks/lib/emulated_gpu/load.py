"""Requests for an engine, how they come, and what is measured of them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from lib.emulated_gpu.acceptance import Text
from lib.emulated_gpu.cells import Cell
from lib.emulated_gpu.clock import wait_until
from smartspec.workload.arrivals import poisson_arrivals, read_trace

FEWEST_WARM, FEWEST_MEASURED = 3, 12  # requests
WARM_WAVES, WAVES = 1.0, 2.0  # in a closed loop, for each request at a time
WARM_SECONDS, SECONDS = 4.0, 10.0  # of Poisson arrivals
WARM_SHARE = 0.2  # of a trace


@dataclass(frozen=True)
class Load:
    """num_warm requests end before anything counts, then num_measured do. prompt, output: tokens,
    int [N]. concurrency: None where requests come at given moments. arrival: these moments in
    seconds, float [N]. token_ids: of prompts; random ones where there are none."""

    num_warm: int
    num_measured: int
    prompt: np.ndarray
    output: np.ndarray
    concurrency: int | None = None
    arrival: np.ndarray | None = None
    token_ids: Sequence[Sequence[int]] = ()

    @staticmethod
    def of(cell: Cell, texts: Sequence[Text] = ()) -> "Load":
        """texts: that requests say in turn. ValueError on an unknown load."""
        kind, _, value = cell.load.partition(":")
        if kind == "trace":
            return _of_trace(value)
        if kind == "closed":
            concurrency, arrivals = int(value), None
            warm, measured = round(WARM_WAVES * concurrency), round(WAVES * concurrency)
        elif kind == "poisson":
            concurrency, rate = None, float(value)
            warm, measured = round(WARM_SECONDS * rate), round(SECONDS * rate)
        else:
            raise ValueError(f"load {cell.load!r}: use closed:N, poisson:RATE or trace:FILE")
        warm, measured = max(FEWEST_WARM, warm), max(FEWEST_MEASURED, measured)
        count = warm + measured + (concurrency or 0)
        rng = np.random.default_rng([cell.seed, 7])
        prompt, output = [
            rng.integers(mean // 2, 3 * mean // 2, size=count, endpoint=True)
            for mean in (cell.prompt_tokens, cell.output_tokens)
        ]
        said = [texts[number % len(texts)] for number in range(count)] if texts else []
        if said:
            prompt = np.array([len(text.prompt) for text in said])
            output = np.minimum(output, [len(text.answer) for text in said])
        arrivals = poisson_arrivals(rate, count, rng) if kind == "poisson" else None
        return Load(
            warm, measured, prompt, output, concurrency, arrivals, [text.prompt for text in said]
        )


def _of_trace(value: str) -> Load:
    path, faster, limit = [*value.split("@"), "", ""][:3]
    trace = read_trace(path, time_scale=float(faster or 1), limit=int(limit) if limit else None)
    warm = round(WARM_SHARE * len(trace))
    columns = trace.num_prompt_tokens, trace.num_output_tokens
    return Load(warm, len(trace) - warm, *columns, arrival=trace.arrival_seconds)


@dataclass
class Request:
    """Moments are of time.perf_counter()."""

    number: int
    came: float
    tokens: list[int] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0


@dataclass
class Window:
    """What is counted between two moments."""

    began: float = 0.0
    tokens: int = 0
    ended: list[Request] = field(default_factory=list)


class Client:
    """Sends a load to an engine and steps it, as its own loop does. rest: called when nothing is to
    be done."""

    def __init__(self, core, load: Load, rest: Callable[[], None]):
        self._core, self._load, self._rest = core, load, rest
        self._requests: dict[str, Request] = {}
        self._sent, self._began = 0, time.perf_counter()
        self._rng = np.random.default_rng(0)

    def run(self, num_ended: int) -> Window:
        """Go on until so many more requests have ended, or all have."""
        window = Window(began=time.perf_counter())
        while len(window.ended) < num_ended:
            self._send()
            if not self._core.scheduler.has_requests() and not self._core.batch_queue:
                # more than that ended in the last step before
                if self._sent == len(self._load.prompt):
                    break
                self._rest()
                wait_until(self._began + self._load.arrival[self._sent])
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
            params = SamplingParams(
                temperature=0.0, max_tokens=int(self._load.output[number]), ignore_eos=True
            )
            request = EngineCoreRequest(
                request_id=name,
                prompt_token_ids=self._prompt(number),
                mm_features=None,
                sampling_params=params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
            self._requests[name] = Request(number, self._came(number))
            self._core.add_request(*self._core.preprocess_add_request(request))

    def _prompt(self, number: int) -> list[int]:
        if self._load.token_ids:
            return list(self._load.token_ids[number])
        return self._rng.integers(10, 1000, self._load.prompt[number]).tolist()

    def _is_due(self) -> bool:
        if self._load.arrival is None:
            return len(self._requests) < self._load.concurrency
        return self._came(self._sent) <= time.perf_counter()

    def _came(self, number: int) -> float:
        """The moment at which a client sent a request, or wanted to."""
        return (
            time.perf_counter()
            if self._load.arrival is None
            else self._began + self._load.arrival[number]
        )

    def _note(self, outputs: dict, window: Window) -> None:
        now = time.perf_counter()
        for group in outputs.values():
            for output in group.outputs:
                request = self._requests[output.request_id]
                request.first = request.first or now
                request.last = now
                request.tokens += output.new_token_ids
                window.tokens += len(output.new_token_ids)
                if output.finish_reason is not None:
                    window.ended.append(self._requests.pop(output.request_id))
