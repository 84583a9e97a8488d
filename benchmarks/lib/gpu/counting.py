"""What happens in steps, by wrapping methods of one engine's scheduler, runner and plugin."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from statistics import median

from lib.gpu.engine import runner_of
from lib.vllm_timed import HOOKS, MEANWHILE


@dataclass
class Step:
    """rows: requests. fed: tokens of the pass, verified: draft tokens among them, after the runner
    left some out. drafted: length of the drafts made in it. has_prefill: prompts are among its
    tokens. graph: full, piecewise or none. ended: the moment at which its tokens were there. told:
    new tokens, by so many rows as `sampled`."""

    rows: int
    fed: int
    drafted: int
    verified: int
    has_prefill: bool
    graph: str = "none"
    ended: float = 0.0
    told: int = 0
    sampled: int = 0


class Counting:
    def __init__(self, core):
        self.steps: list[Step] = []
        self._by_output: dict[int, Step] = {}
        self._seconds: Counter[str] = Counter()
        self._watched: list[object] = []
        self._wrap_scheduler(core.scheduler)
        self._wrap_runner(runner_of(core))
        try:
            from vllm.v1.executor.uniproc_executor import AsyncOutputFuture

            AsyncOutputFuture.result = self._timed(AsyncOutputFuture.result, "waiting")
        except ImportError:
            pass

    def clear(self) -> None:
        self.steps.clear()
        self._seconds.clear()

    def watch(self, speculation: object) -> None:
        """Times the plugin's hooks."""
        if speculation is not None and speculation not in self._watched:
            self._watched.append(speculation)
            for name in (*HOOKS, *MEANWHILE):
                setattr(speculation, name, self._timed(getattr(speculation, name), f"our_{name}"))

    def _wrap_scheduler(self, scheduler) -> None:
        after_schedule, update = scheduler._update_after_schedule, scheduler.update_from_output

        def note(output):
            after_schedule(output)
            if output.total_num_scheduled_tokens:
                step = self._by_output[id(output)] = step_of(output, scheduler)
                self.steps.append(step)

        def finish(output, model_output):
            step = self._by_output.pop(id(output), None)
            if step is not None:
                step.ended = time.perf_counter()
                counts = [len(tokens) for tokens in model_output.sampled_token_ids]
                step.told, step.sampled = sum(counts), sum(count > 0 for count in counts)
            return update(output, model_output)

        scheduler._update_after_schedule = note
        scheduler.update_from_output = self._timed(finish, "update")
        scheduler.schedule = self._timed(scheduler.schedule, "schedule")

    def _wrap_runner(self, runner) -> None:
        graphs = getattr(runner, "cudagraph_manager", None)
        if graphs is not None:
            graphs.run_fullgraph = self._graph(graphs.run_fullgraph, "full")
            graphs.run_pw_graph = self._graph(graphs.run_pw_graph, "piecewise")
        if (adaptive := getattr(runner, "adaptive_verification", None)) is not None:
            stock = adaptive.get_num_tokens

            @wraps(stock)
            def get_num_tokens(*arguments):
                count = stock(*arguments)
                for step in self.steps[-1:]:
                    step.fed, step.verified = count, step.verified - (step.fed - count)
                return count

            adaptive.get_num_tokens = get_num_tokens

    def _graph(self, method: Callable, kind: str) -> Callable:
        @wraps(method)
        def call(*arguments, **options):
            if self.steps:
                self.steps[-1].graph = kind
            return method(*arguments, **options)

        return call

    def _timed(self, method: Callable, key: str) -> Callable:
        @wraps(method)
        def call(*arguments, **options):
            began = time.perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                self._seconds[key] += time.perf_counter() - began

        return call

    def figures(self, seconds: float) -> dict:
        """Of what happened since clear(), in so many seconds."""
        steps, rows = self.steps, sum(step.rows for step in self.steps)
        count, per_row = max(len(steps), 1), max(rows, 1)
        milliseconds = {key: 1e3 * value / count for key, value in self._seconds.items()}
        ours = {key: value for key, value in milliseconds.items() if key.startswith("our_")}
        return {
            "steps": len(steps),
            "step_ms": 1e3 * seconds / count,
            "rows": rows / count,
            "drafted": sum(step.drafted for step in steps) / count,
            "verified": sum(step.verified for step in steps) / per_row,
            "tokens_per_row": sum(step.told for step in steps) / per_row,
            "accepted": sum(step.told - step.sampled for step in steps),
            "full": sum(step.graph == "full" for step in steps) / count,
            "piecewise": sum(step.graph == "piecewise" for step in steps) / count,
            "with_prefill": sum(step.has_prefill for step in steps) / count,
            "waiting": self._seconds["waiting"] / seconds,
            "schedule_ms": milliseconds.get("schedule", 0.0),
            "update_ms": milliseconds.get("update", 0.0),
            "ours_ms": sum(ours.values()),
            "hooks_ms": ours,
            "lengths": {
                str(k): v for k, v in sorted(Counter(step.drafted for step in steps).items())
            },
            "alike": alike(steps),
        }


def step_of(output, scheduler) -> Step:
    counts = output.num_scheduled_tokens
    drafts = output.scheduled_spec_decode_tokens
    requests = scheduler.requests
    # A new request, or a further part of a long prompt.
    is_prefill = bool(output.scheduled_new_reqs) or any(
        count > 1 + len(drafts.get(name, ())) and requests[name].num_output_tokens == 0
        for name, count in counts.items()
        if name in requests
    )
    return Step(
        rows=len(counts),
        fed=output.total_num_scheduled_tokens,
        drafted=output.num_spec_tokens_to_schedule,
        verified=sum(map(len, drafts.values())),
        has_prefill=is_prefill,
    )


def alike(steps: list[Step]) -> list[dict]:
    """Steps of the same kind together, the most frequent ones first: milliseconds from the end of
    the step before to their end. A step verifies the drafts that the step before made, so both
    lengths count."""
    kinds: dict[tuple, list[tuple[Step, float]]] = {}
    for before, step in pairwise(steps):
        if before.ended and step.ended:
            kind = step.has_prefill, step.graph, before.drafted, step.drafted
            kinds.setdefault(kind, []).append((step, 1e3 * (step.ended - before.ended)))
    return [
        {
            "prefill": prefill,
            "graph": graph,
            "verified_length": verified,
            "drafted": drafted,
            "steps": len(found),
            "rows": median(step.rows for step, _ in found),
            "fed": median(step.fed for step, _ in found),
            "ms": median(ms for _, ms in found),
            "mean_ms": sum(ms for _, ms in found) / len(found),
        }
        for (prefill, graph, verified, drafted), found in sorted(
            kinds.items(), key=lambda pair: -len(pair[1])
        )[:8]
    ]
