"""Where the host's time of a step goes, part by part, on the live engine: see `step.py parts`."""

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from statistics import mean, median

from rich.console import Console
from rich.table import Table

from smartspec.control.records import BatchView, Plan
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime import executor
from smartspec.engine.runtime.build import Engine, build_engine
from smartspec.engine.runtime.config import EngineConfig, parse_drafters
from smartspec.workload.prompts import Prompt, read_prompts, shipped_prompts

PARTS = ("propose", "plan", "cut", "learn", "remember")
COLUMNS = (*PARTS, "sum", "host", "target", "step")
NUM_WARM_UP_STEPS = 40
SLOWEST = 0.02


def compare(
    concurrency: int,
    policies: str,
    drafter: str,
    prompts: Path | None,
    steps: int,
    max_tokens: int,
    temperature: float,
    quantization: str,
) -> None:
    """Print the table. Arguments are the options of `step.py parts`."""
    texts = shipped_prompts() if prompts is None else read_prompts(prompts)
    names, drafters = policies.split(","), parse_drafters(drafter)
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    options = {"drafters": drafters, "quantization": quantization, "strict": True}
    hosts = [Host(EngineConfig(policy=name, **options), texts, params) for name in names]
    while min(len(host.steps) for host in hosts) < steps:
        for host in hosts:
            host.step(concurrency)
    title = f"{concurrency} requests, ms per step"
    table = Table(
        "policy", *COLUMNS, "none drafted", "steps", "queried", "tokens/step", title=title
    )
    for name, host in zip(names, hosts, strict=True):
        table.add_row(name, *host.row())
    Console(width=150).print(table)


class Host:
    """An engine that is kept busy, and the seconds that the parts of its steps took."""

    def __init__(self, config: EngineConfig, texts: list[Prompt], params: SamplingParams):
        self.steps: list[dict[str, float]] = []
        self.tokens: list[int] = []
        self.queried: list[bool] = []
        self.drafted: list[bool] = []
        self._engine = build_engine(config, report=print)
        self._requests = requests_of(self._engine, texts, params)
        self._seconds = dict.fromkeys((*PARTS, "target"), 0.0)
        self._inner = 0.0  # of timed calls inside the one under way
        self._num_steps = 0
        core = self._engine.core
        self._plan = self._timed("plan", core.controller.plan)
        core.controller.plan = self._noted
        for name, owner, method in [
            ("cut", core.controller, "cut"),
            ("learn", core.controller, "learn"),
            ("target", core.executor.runner, "forward"),
            ("target", executor, "verify"),
            *((("propose", drafter, "begin_step")) for drafter in core.executor.drafters),
            *((("propose", drafter, "view")) for drafter in core.executor.drafters),
            *((("remember", drafter, "observe")) for drafter in core.executor.drafters),
        ]:
            setattr(owner, method, self._timed(name, getattr(owner, method)))

    def step(self, concurrency: int) -> None:
        """Run one step; it counts if it only decodes, after the first few."""
        core = self._engine.core
        while core.num_running + core.num_waiting < concurrency:
            core.add_request(next(self._requests))
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        began = time.thread_time()
        output = core.step(time.monotonic())
        step = time.thread_time() - began
        self._num_steps += 1
        if output.num_prefill_tokens or self._num_steps <= NUM_WARM_UP_STEPS:
            return
        s = self._seconds
        self.steps.append(
            s | {"sum": sum(s[part] for part in PARTS), "host": step - s["target"], "step": step}
        )
        self.tokens.append(sum(len(o.new_token_ids) for o in output.outputs))
        self.queried.append(self._is_queried)
        self.drafted.append(output.num_draft_tokens > 0)

    def row(self) -> list[str]:
        """Milliseconds of each part, and tokens of a step."""
        cells = [f"{1e3 * _mean([step[column] for step in self.steps]):.3f}" for column in COLUMNS]
        plain = [
            step["host"]
            for step, drafted in zip(self.steps, self.drafted, strict=True)
            if not drafted
        ]
        cells += [f"{1e3 * median(plain):.3f}" if plain else "-", f"{len(plain)}/{len(self.steps)}"]
        return [*cells, f"{mean(self.queried):.2f}", f"{mean(self.tokens):.2f}"]

    def _noted(self, view: BatchView) -> Plan:
        plan = self._plan(view)
        self._is_queried = bool(plan.queried)
        return plan

    def _timed(self, name: str, function: Callable) -> Callable:
        """The function, whose time is counted under this name without that of timed functions that
        it calls."""

        def timed(*arguments):
            outer, self._inner = self._inner, 0.0
            began = time.thread_time()
            result = function(*arguments)
            seconds = time.thread_time() - began
            self._seconds[name] += seconds - self._inner
            self._inner = outer + seconds
            return result

        return timed


def _mean(values: list[float]) -> float:
    """Without the largest, in which the thread was most likely interrupted."""
    return mean(sorted(values)[: max(1, round((1 - SLOWEST) * len(values)))])


def requests_of(
    engine: Engine, texts: list[Prompt], params: SamplingParams, first_id: int = 0
) -> Iterator[Request]:
    """The prompts as chats of one message, again and again."""
    for number, prompt in enumerate(cycle(texts), first_id):
        messages = [{"role": "user", "content": prompt.text}]
        text = engine.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        yield Request(
            number, engine.tokenizer.encode(text, add_special_tokens=False), params, seed=number
        )
