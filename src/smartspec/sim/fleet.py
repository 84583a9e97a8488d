"""Replicas and their router, in virtual time: an event loop over arrivals and ends of steps.

A replica is one real EngineCore whose steps take as long as its executor says. What a step emits
becomes known, to clients and to the router, when the step ends.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from smartspec.core.batch import RequestOutput
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.speculation import NO_OPTIONS, SpeculationOptions
from smartspec.sim.executor import EOS, SimExecutor
from smartspec.sim.world.traffic import Traffic
from smartspec.workload.records import RequestRecord, SpeculationCounters

ROUTERS: dict[str, Callable[[int, list[int]], int]] = {
    "round-robin": lambda index, loads: index % len(loads),
    "least-loaded": lambda index, loads: loads.index(min(loads)),
}


@dataclass
class Totals:
    """Sums over steps and replicas. num_row_steps: decoding requests, summed over steps."""

    num_steps: int = 0
    num_row_steps: int = 0
    num_drafted_tokens: int = 0
    num_verified_tokens: int = 0
    num_accepted_tokens: int = 0
    busy_seconds: float = 0.0

    @property
    def counters(self) -> SpeculationCounters:
        return SpeculationCounters(
            self.num_drafted_tokens,
            self.num_verified_tokens,
            self.num_accepted_tokens,
            self.num_row_steps,
        )


@dataclass
class Run:
    """Results of a simulation so far; records in order of completion."""

    records: list[RequestRecord] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)


class Replica:
    """One engine. clock: end of its last step. load: requests routed here that have not ended, as a
    router sees it.

    awaited: the fleet will look after it at some moment, because a step ends then or requests have
    come.
    """

    def __init__(self, core: EngineCore, executor: SimExecutor):
        self.core = core
        self.executor = executor
        self.clock = 0.0
        self.load = 0
        self.awaited = False
        self._queue: deque[int] = deque()
        self._outputs: tuple[RequestOutput, ...] = ()

    @property
    def has_work(self) -> bool:
        return bool(self._queue) or self.core.has_work

    def route_here(self, index: int) -> None:
        self._queue.append(index)
        self.load += 1

    def take_outputs(self) -> tuple[RequestOutput, ...]:
        """Outputs of the step that has just ended."""
        outputs, self._outputs = self._outputs, ()
        return outputs

    def step(self, now: float, traffic: Traffic, totals: Totals) -> list[tuple[int, str]]:
        """Run a step that begins at now; returns the requests it had to refuse, and why."""
        refused = self._fill_queue(traffic)
        output = self.core.step(now)
        seconds = output.seconds.total
        assert seconds > 0 or not self.core.has_work, (
            "a step must take time, or the simulation would never end"
        )
        self.clock = now + seconds
        self._outputs = output.outputs
        totals.num_steps += 1
        totals.num_row_steps += len(output.verified_lengths)
        totals.num_drafted_tokens += output.num_draft_tokens
        totals.num_verified_tokens += output.num_verified_tokens
        totals.num_accepted_tokens += output.num_accepted_tokens
        totals.busy_seconds += seconds
        return refused

    def _fill_queue(self, traffic: Traffic) -> list[tuple[int, str]]:
        """Hand over as many requests as one step could start; the others need no memory for their
        text yet."""
        refused = []
        while self._queue and self.core.num_waiting < self.core.scheduler.blocks.num_slots:
            index = self._queue.popleft()
            try:
                self.core.add_request(
                    _request(traffic, index, self.executor.acceptance.max_draft_tokens)
                )
                self.executor.acceptance.begin(index, int(traffic.class_ids[index]))
            except ValueError as error:
                self.load -= 1
                refused.append((index, str(error)))
        return refused


class Fleet:
    """Serves traffic with replicas. route: (index of the request, loads of the replicas) ->
    replica."""

    def __init__(
        self,
        replicas: list[Replica],
        route: Callable[[int, list[int]], int] = ROUTERS["round-robin"],
    ):
        self.replicas = replicas
        self._route = route
        # (end of step or wake-up, replica) of replicas with work
        self._events: list[tuple[float, int]] = []

    def serve(
        self,
        traffic: Traffic,
        run: Run,
        on_finished: Callable[[int], None] = lambda num_finished: None,
    ) -> None:
        """Serve all of it, adding to run; interrupted, run holds what had finished by then.

        on_finished: called with the number of requests that ended at a moment.
        """
        self._traffic, self._run = traffic, run
        self._start_seconds = np.full(len(traffic), np.nan)
        self._first_token_seconds = np.full(len(traffic), np.nan)
        self._num_arrived = 0
        self._arrivals = _arrival_list(traffic)
        while self._arrivals or self._events:
            if self._arrivals and (not self._events or self._arrivals[0] <= self._events[0][0]):
                self._arrive(self._arrivals.popleft())
                continue
            now, which = heapq.heappop(self._events)
            self.replicas[which].awaited = False
            num_finished = self._finish(self.replicas[which], now)
            if num_finished:
                on_finished(num_finished)
            self._go_on(which, now, num_finished)

    def _arrive(self, now: float) -> None:
        index, self._num_arrived = self._num_arrived, self._num_arrived + 1
        self._start_seconds[index] = now
        which = self._route(index, [replica.load for replica in self.replicas])
        replica = self.replicas[which]
        replica.route_here(index)
        if not replica.awaited:
            self._await(which, now)

    def _finish(self, replica: Replica, now: float) -> int:
        """Take note of the first and last tokens of the step that ends now; returns how many
        requests ended."""
        num_finished = 0
        for output in replica.take_outputs():
            request = output.request
            if request.num_output_tokens == len(output.new_token_ids):
                self._first_token_seconds[request.request_id] = now
            if output.finish_reason is not None:
                num_finished += 1
                self._record(
                    request.request_id, now, request.num_output_tokens, output.finish_reason
                )
        replica.load -= num_finished
        return num_finished

    def _go_on(self, which: int, now: float, num_finished: int) -> None:
        """Begin the replica's next step. In a closed loop, the requests that replace finished ones
        come first."""
        replica = self.replicas[which]
        num_new = self._open_places(now, num_finished)
        if num_new:
            self._await(which, now)
        elif replica.has_work:
            refused = replica.step(now, self._traffic, self._run.totals)
            for index, reason in refused:
                self._record(index, now, 0, None, reason)
            self._open_places(now, len(refused))
            self._await(which, replica.clock)

    def _await(self, which: int, moment: float) -> None:
        self.replicas[which].awaited = True
        heapq.heappush(self._events, (moment, which))

    def _open_places(self, now: float, num_finished: int) -> int:
        if self._traffic.concurrency is None:
            return 0
        num_new = min(num_finished, len(self._traffic) - self._num_arrived - len(self._arrivals))
        self._arrivals.extend([now] * num_new)
        return num_new

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


def _arrival_list(traffic: Traffic) -> deque[float]:
    if traffic.concurrency is None:
        return deque(traffic.arrival_seconds.tolist())
    return deque([0.0] * min(traffic.concurrency, len(traffic)))


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
