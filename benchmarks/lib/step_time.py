"""Where the host's time of a step goes, part by part, on the live engine: see `step.py parts`."""

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.build import Engine, build_engine
from smartspec.engine.runtime.config import EngineConfig, parse_drafters
from smartspec.workload.prompts import Prompt, read_prompts, shipped_prompts

PARTS = ("propose", "plan", "cut", "learn", "remember")
COLUMNS = (*PARTS, "controller", "sum", "host", "target", "step")


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
    title = f"{concurrency} requests, ms per step (mean)"
    table = Table("policy", *COLUMNS, "asked", "tokens/step", "tokens/s", title=title)
    for name, host in zip(names, hosts, strict=True):
        table.add_row(name, *host.row())
    Console(width=140).print(table)


class Host:
    """An engine that is kept busy, and the seconds that the parts of its steps took."""

    def __init__(self, config: EngineConfig, texts: list[Prompt], params: SamplingParams):
        self.steps: list[dict[str, float]] = []
        self.tokens: list[int] = []
        self.asked: list[bool] = []
        self._engine = build_engine(config, report=print)
        self._requests = requests_of(self._engine, texts, params)
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._is_asked = False
        core = self._engine.core
        core.controller.asks_drafters = self._noted(core.controller.asks_drafters)
        for name, owner, method in [
            ("plan", core.controller, "plan"),
            ("cut", core.controller, "cut"),
            ("learn", core.controller, "observe"),
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
        self._seconds = dict.fromkeys(PARTS, 0.0)
        output = core.step(time.monotonic())
        if output.num_prefill_tokens:
            return
        s = self._seconds
        controller = s["plan"] + s["cut"] + s["learn"]
        total = controller + s["propose"] + s["remember"]
        host = output.seconds.host + output.seconds.draft + s["learn"]  # learning is behind the step's clock
        times = {"controller": controller, "sum": total, "host": host, "target": output.seconds.target}
        self.steps.append(s | times | {"step": host + output.seconds.target})
        self.tokens.append(sum(len(o.new_token_ids) for o in output.outputs))
        self.asked.append(self._is_asked)

    def row(self) -> list[str]:
        """Means in milliseconds, and tokens of a step."""
        cells = [f"{1e3 * mean(step[column] for step in self.steps):.3f}" for column in COLUMNS]
        rate = sum(self.tokens) / sum(step["step"] for step in self.steps)
        return [*cells, f"{mean(self.asked):.2f}", f"{mean(self.tokens):.2f}", f"{rate:.1f}"]

    def _noted(self, asks_drafters: Callable[[int], bool]) -> Callable[[int], bool]:
        def noted(num_rows: int) -> bool:
            self._is_asked = asks_drafters(num_rows)
            return self._is_asked

        return noted

    def _timed(self, name: str, function: Callable) -> Callable:
        def timed(*arguments):
            began = time.perf_counter()
            result = function(*arguments)
            self._seconds[name] += time.perf_counter() - began
            return result

        return timed


def requests_of(engine: Engine, texts: list[Prompt], params: SamplingParams, first_id: int = 0) -> Iterator[Request]:
    """The prompts as chats of one message, again and again."""
    for number, prompt in enumerate(cycle(texts), first_id):
        messages = [{"role": "user", "content": prompt.text}]
        text = engine.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        yield Request(number, engine.tokenizer.encode(text, add_special_tokens=False), params, seed=number)
