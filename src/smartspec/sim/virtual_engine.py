"""One engine in virtual time: a real EngineCore whose steps take as long as its executor says.

What a step emits becomes known, to clients too, when the step ends.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import numpy as np

from smartspec.core.batch import RequestOutput
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.speculation import NO_OPTIONS, SpeculationOptions
from smartspec.sim.executor import EOS, SimExecutor
from smartspec.sim.world.traffic import Traffic
from smartspec.workload.records import RequestRecord, SpeculationCounters

NOTHING = SpeculationCounters(0, 0, 0, 0)


@dataclass
class Run:
    """Results of a simulation so far; records in order of completion."""

    records: list[RequestRecord] = field(default_factory=list)
    totals: SpeculationCounters = NOTHING


class VirtualEngine:
    """Serves traffic. Its clock is the end of its last step."""

    def __init__(self, core: EngineCore, executor: SimExecutor):
        self.core = core
        self.executor = executor
        self._clock = 0.0
        self._is_stepping = False
        self._outputs: tuple[RequestOutput, ...] = ()
        self._arrivals: deque[tuple[int, float]] = deque()  # requests to come, and when
        self._queue: deque[int] = deque()

    def serve(
        self,
        traffic: Traffic,
        run: Run,
        on_finished: Callable[[Run], None] = lambda run: None,
    ) -> None:
        """Serve all of it, adding to run; interrupted, run holds what had finished by then.

        on_finished: called with run each time that requests have ended.
        """
        self.begin(traffic, run, on_finished)
        for index, moment in enumerate(_first_arrivals(traffic)):
            self.send(index, moment)
        self.advance()

    def begin(
        self,
        traffic: Traffic,
        run: Run,
        on_finished: Callable[[Run], None] = lambda run: None,
    ) -> None:
        """Requests of this traffic will be sent, and their results are added to run."""
        self._traffic, self._run, self._on_finished = traffic, run, on_finished
        self._start_seconds = np.full(len(traffic), np.nan)
        self._first_token_seconds = np.full(len(traffic), np.nan)
        self._num_sent = 0

    def send(self, index: int, moment: float) -> None:
        """Request `index` of the traffic comes at that moment, and after those sent before."""
        self._num_sent += 1
        self._start_seconds[index] = moment
        self._arrivals.append((index, moment))

    def advance(self, until: float = inf) -> None:
        """Live through every moment before `until` at which a step ends or begins."""
        while (now := self._next_moment()) < until:
            num_finished = self._finish(now)
            if num_finished:
                self._on_finished(self._run)
                self._replace(num_finished, now)
            while self._arrivals and self._arrivals[0][1] <= now:
                self._queue.append(self._arrivals.popleft()[0])
            self._is_stepping = bool(self._queue) or self.core.has_work
            if self._is_stepping:
                self._step(now)

    def _next_moment(self) -> float:
        if self._is_stepping:
            return self._clock
        return self._arrivals[0][1] if self._arrivals else inf

    def _finish(self, now: float) -> int:
        """Take note of the first and last tokens of the step that ends now; returns how many
        requests ended."""
        num_finished = 0
        for output in self._outputs:
            request = output.request
            if request.num_output_tokens == len(output.new_token_ids):
                self._first_token_seconds[request.request_id] = now
            if output.finish_reason is not None:
                num_finished += 1
                self._record(
                    request.request_id, now, request.num_output_tokens, output.finish_reason
                )
        self._outputs = ()
        return num_finished

    def _replace(self, num_ended: int, now: float) -> None:
        """In a closed loop, a request comes for each that ended, as long as there are some."""
        if self._traffic.concurrency is not None:
            last = min(self._num_sent + num_ended, len(self._traffic))
            for index in range(self._num_sent, last):
                self.send(index, now)

    def _step(self, now: float) -> None:
        """Run a step that begins now."""
        num_refused = self._fill_queue(now)
        output = self.core.step(now)
        seconds = output.seconds.total
        assert seconds > 0 or not self.core.has_work, (
            "a step must take time, or the simulation would never end"
        )
        self._clock = now + seconds
        self._outputs = output.outputs
        totals = self._run.totals
        self._run.totals = SpeculationCounters(
            totals.num_drafted_tokens + output.num_draft_tokens,
            totals.num_verified_tokens + output.num_verified_tokens,
            totals.num_accepted_tokens + output.num_accepted_tokens,
            totals.num_decode_rows + len(output.verified_lengths),
        )
        self._replace(num_refused, now)

    def _fill_queue(self, now: float) -> int:
        """Hand over as many requests as one step could start; the others need no memory for their
        text yet. Returns how many had to be refused."""
        num_refused, acceptance = 0, self.executor.acceptance
        while self._queue and self.core.num_waiting < self.core.scheduler.blocks.num_slots:
            index = self._queue.popleft()
            try:
                self.core.add_request(_request(self._traffic, index, acceptance.max_draft_tokens))
                acceptance.begin(index, int(self._traffic.class_ids[index]))
            except ValueError as error:
                num_refused += 1
                self._record(index, now, 0, None, str(error))
        return num_refused

    def _record(
        self, index: int, now: float, num_tokens: int, reason: str | None, error: str | None = None
    ) -> None:
        start, first = float(self._start_seconds[index]), float(self._first_token_seconds[index])
        self._run.records.append(
            RequestRecord(
                prompt_id=str(index),
                task=_class_name(self._traffic, index),
                start_seconds=start,
                ttft_seconds=None if error is not None else first - start,
                end_to_end_seconds=now - start,
                num_prompt_tokens=int(self._traffic.num_prompt_tokens[index]),
                num_output_tokens=num_tokens,
                has_usage=True,
                finish_reason=reason,
                error=error,
                text="",
                tpot_target_seconds=self._traffic.tpot_target(index),
                ttft_target_seconds=self._traffic.ttft_target,
            )
        )


def _first_arrivals(traffic: Traffic) -> list[float]:
    """Moments at which requests come, as far as they are known before any has ended."""
    if traffic.concurrency is None:
        return traffic.arrival_seconds.tolist()
    return [0.0] * min(traffic.concurrency, len(traffic))


def _request(traffic: Traffic, index: int, max_draft_tokens: int) -> Request:
    """Prompts are made of the request's own number, so no two share a prefix. Its limit lies after
    EOS."""
    prompt = np.broadcast_to(np.int32(index), int(traffic.num_prompt_tokens[index]))
    params = SamplingParams(
        max_tokens=int(traffic.num_output_tokens[index]) + max_draft_tokens, temperature=0.0
    )
    options = NO_OPTIONS
    if traffic.tagged or traffic.tpot_targets:
        name = _class_name(traffic, index) if traffic.tagged else None
        options = SpeculationOptions(
            workload_class=name, tpot_target_seconds=traffic.tpot_target(index)
        )
    return Request(
        index, prompt, params, seed=0, stop_token_ids=frozenset({EOS}), speculation=options
    )


def _class_name(traffic: Traffic, index: int) -> str:
    return f"class {traffic.class_ids[index]}"
