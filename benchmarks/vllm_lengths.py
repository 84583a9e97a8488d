"""What draft lengths are worth in vLLM with ngram drafts, without a machine's noise: the worst cell first.

The plugin itself decides, around a stand-in for vLLM's scheduler (tests/vllm_plugin/stub). Texts are real: greedy
answers of the default model, made by our engine and kept in a file. So are drafts: vLLM's rule of lookup on these
texts. Time is virtual: a pass takes what it took in vLLM 0.32 on two cores (--constant and --per-token, in ms), give
or take some noise, or what a cost model says that the plugin has kept (--costs, a file of its cache), and the
scheduler's own work takes none. Closed loop: so many requests at a time, until some times as many have been served,
each with half to one and a half times --max-tokens new tokens or to the end of its answer: equal ones would run in
lock-step without drafts, see vllm_policies.py.

SmartSpec serves every cell once before anything counts, as in vllm_policies.py, which measures in vLLM. Tokens per
second are geometric means over rounds.

    python benchmarks/vllm_lengths.py
"""

import json
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from tasks import SHIPPED_TASKS, PromptsPath, check_task, prompts_by_task

from smartspec.bench.report import write_json
from smartspec.control import CostCurve

TESTS = Path(__file__).parents[1] / "tests" / "vllm_plugin"
LONGEST, SHORTEST_MATCH, LONGEST_MATCH = 5, 2, 4
OURS = "smartspec"
LONGEST_PROMPT = 800  # tokens


@dataclass(frozen=True)
class Text:
    """Token ids of a prompt and of its greedy answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@cache
def lookup(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """vLLM's draft: what follows the first place of the longest match of the text's end."""
    for length in range(min(LONGEST_MATCH, len(tokens) - 1), SHORTEST_MATCH - 1, -1):
        end = tokens[-length:]
        for place in range(len(tokens) - length):
            if tokens[place] == end[0] and tokens[place : place + length] == end:
                return tokens[place + length : place + length + LONGEST]
    return ()


class TextEngine:
    """vLLM's engine loop around a scheduler, with known texts and virtual time in seconds. noise: standard deviation of
    the log of a pass's time."""

    def __init__(self, scheduler, curve: CostCurve, noise: float):
        scheduler.max_num_running_reqs, scheduler.max_num_scheduled_tokens, scheduler.max_model_len = 64, 4096, 2048
        scheduler.cache_config.num_gpu_blocks = 100_000
        self._scheduler, self._curve, self._noise = scheduler, curve, noise
        self._random = np.random.default_rng(0)
        self._texts: dict[str, tuple[int, ...]] = {}
        self.now = 0.0
        if speculation := getattr(scheduler, "speculation", None):
            scheduler.dynamic_sd_lookup = [scheduler.num_spec_tokens] * 65
            speculation._clock = lambda: self.now

    def serve(self, texts: list[Text], at_once: int) -> float:
        """Tokens per second."""
        began, waiting, scheduler = self.now, list(texts), self._scheduler
        while waiting or scheduler.has_unfinished_requests():
            while waiting and len(scheduler.requests) < at_once:
                self._add(waiting.pop(0))
            self._step()
        return sum(len(text.answer) for text in texts) / (self.now - began)

    def _add(self, text: Text) -> None:
        from vllm.schedulers import Request

        name = str(len(self._texts))
        self._texts[name] = text.prompt + text.answer
        parameters = SimpleNamespace(extra_args=None)
        self._scheduler.add_request(Request(name, list(text.prompt), len(text.answer), parameters))

    def _step(self) -> None:
        from vllm.schedulers import ModelRunnerOutput

        output, scheduler = self._scheduler.schedule(), self._scheduler
        sampled, sizes = [], []
        for name, fed in output.num_scheduled_tokens.items():
            request, text = scheduler.requests[name], self._texts[name]
            draft = output.scheduled_spec_decode_tokens.get(name, [])
            end = request.num_computed_tokens - len(draft)  # of the text that is known
            wrong = [n for n, token in enumerate(draft) if end + n >= len(text) or token != text[end + n]]
            accepted = wrong[0] if wrong else len(draft)
            sampled.append(list(text[end : end + accepted + 1]) if end >= request.num_prompt_tokens else [])
            sizes.append((fed, request.num_computed_tokens, fed * (request.num_computed_tokens - (fed - 1) / 2)))
        fed_tokens, context, attended = np.sum(sizes, axis=0).tolist()
        seconds = self._curve.seconds(fed_tokens, context, len(sizes), attended)
        self.now += float(seconds) * float(np.exp(self._noise * self._random.standard_normal()))
        rows = {name: row for row, name in enumerate(output.num_scheduled_tokens)}
        scheduler.update_from_output(output, ModelRunnerOutput(rows, sampled))
        decoding = [r for r in scheduler.requests.values() if r.num_tokens == r.num_computed_tokens + 1]
        drafts = {r.request_id: list(lookup(tuple(r.tokens))[: scheduler.num_spec_tokens]) for r in decoding}
        scheduler.update_draft_token_ids(drafts)


def engine(policy: str, folder: Path, curve: CostCurve, noise: float) -> TextEngine:
    """Of a policy: off, fixed:K or ours, which begins with what the folder holds of step times."""
    from toy_engine import make_config
    from vllm.schedulers import Scheduler as StockScheduler

    from smartspec.vllm_plugin import Scheduler

    longest = LONGEST if policy == OURS else int(policy.removeprefix("fixed:")) if policy != "off" else 0
    config = make_config(folder, num_speculative_tokens=longest, settings={"metrics_seconds": 1e9})
    return TextEngine((Scheduler if policy == OURS else StockScheduler)(config), curve, noise)


def read_texts(path: Path, prompts: Path | None, tasks: list[str], per_task: int, max_tokens: int) -> dict:
    """By task, with answers of up to max_tokens. What is not in the file, or of other settings, is made and kept."""
    settings = {"prompts": str(prompts), "per_task": per_task, "max_tokens": max_tokens}
    kept = json.loads(path.read_text()) if path.exists() else {}
    texts = kept["texts"] if kept.get("settings") == settings else {}
    if missing := [task for task in tasks if task not in texts]:
        path.parent.mkdir(parents=True, exist_ok=True)
        texts |= make_texts(prompts, missing, per_task, max_tokens)
        write_json(path, {"settings": settings, "texts": texts})
    return {task: [Text(*map(tuple, text)) for text in texts[task] if text[1]] for task in tasks}


def make_texts(path: Path | None, tasks: list[str], per_task: int, max_tokens: int) -> dict:
    """By task, token ids of prompts and greedy answers."""
    import time

    from drafter_tokens import make_core, token_ids_of

    from smartspec.core.request import Request
    from smartspec.core.sampling_params import SamplingParams
    from smartspec.engine.runtime.build import load_models
    from smartspec.engine.runtime.config import EngineConfig

    by_task, texts = prompts_by_task(path), {}
    runners = load_models(EngineConfig(drafters=("prompt-lookup",), max_batch=1, max_model_len=2048))
    core, model = make_core(runners, "prompt-lookup", "fixed:5", 5), runners.target.loaded
    params, stop = SamplingParams(max_tokens=max_tokens, temperature=0.0), model.eos_token_ids
    for task in tasks:
        check_task(task, by_task)
        texts[task] = []
        for prompt in by_task[task]:
            token_ids = token_ids_of(model.tokenizer, prompt)
            if len(token_ids) > LONGEST_PROMPT or len(texts[task]) == per_task:
                continue
            number = sum(map(len, texts.values()))
            request = Request(number, token_ids, params, seed=0, stop_token_ids=stop)
            core.add_request(request)
            while core.has_work:
                core.step(time.monotonic())
            texts[task].append((token_ids, request.output_token_ids.tolist()))
    return texts


def main(
    texts: Annotated[Path, typer.Option(help="File of texts, made if it is not there.")] = Path(
        "build/vllm-texts.json"
    ),
    policies: Annotated[str, typer.Option(help=f"Others than {OURS}, separated by commas; off first.")] = (
        "off,fixed:1,fixed:3,fixed:5"
    ),
    tasks: Annotated[str, typer.Option(help=f"Of {SHIPPED_TASKS}.")] = "summarization,rag,editing,chat",
    concurrency: Annotated[str, typer.Option(help="Separated by commas.")] = "1,4,8,16,32",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each cell.")] = 6,
    waves: Annotated[int, typer.Option(min=1, help="Requests of a round, for each that runs at a time.")] = 4,
    per_task: Annotated[int, typer.Option(min=1, help="Texts of a task.")] = 24,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens of a text, on average.")] = 64,
    constant: Annotated[float, typer.Option(help="Milliseconds of a pass.")] = 36.2,
    per_token: Annotated[float, typer.Option(help="Milliseconds of a token in it.")] = 2.21,
    costs: Annotated[Path | None, typer.Option(help="File of a cost model that the plugin has kept.")] = None,
    noise: Annotated[float, typer.Option(min=0.0, help="Of the time of a pass, relative.")] = 0.05,
    prompts: PromptsPath = None,
) -> None:
    os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")  # nothing to warn about
    sys.path[:0] = [str(TESTS), str(TESTS / "stub")]
    curve = CostCurve.linear(constant / 1000, per_token / 1000)
    if costs is not None:
        curve = CostCurve.from_dict(json.loads(costs.read_text())["cost_model"]["target"])
    by_task = read_texts(texts, prompts, tasks.split(","), per_task, 3 * max_tokens // 2)
    cells = [(task, int(level)) for task in by_task for level in concurrency.split(",")]

    def drawn(task: str, level: int, number: int) -> list[Text]:
        rng = np.random.default_rng([level, number])
        chosen = rng.integers(len(by_task[task]), size=max(2, waves * level))
        lengths = rng.integers(max_tokens // 2, 3 * max_tokens // 2, size=len(chosen), endpoint=True)
        found = [by_task[task][i] for i in chosen]
        return [Text(text.prompt, text.answer[:n]) for text, n in zip(found, lengths, strict=True)]

    names = [*policies.split(","), OURS]
    with TemporaryDirectory() as folder:
        first = engine(OURS, Path(folder), curve, noise)
        for task, level in cells:
            first.serve(drawn(task, level, rounds), level)
        engines = {name: engine(name, Path(folder), curve, noise) for name in names}
        speeds = {
            (task, level): np.array(
                [[engines[name].serve(drawn(task, level, n), level) for name in names] for n in range(rounds)]
            )
            for task, level in cells
        }
    Console(width=130).print(table_of(names, speeds))


def table_of(names: list[str], speeds: dict[tuple[str, int], np.ndarray]) -> Table:
    """A line for each cell, the worst ratio of SmartSpec to the best other policy first. speeds: float [rounds,
    policies], of the cell."""
    table = Table("task", "c", title=f"Tokens/s, virtual; {OURS} against the best other", box=SIMPLE)
    for column in (*names, "of best", "of off"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = []
    for (task, level), of_cell in speeds.items():
        means = np.exp(np.log(of_cell).mean(axis=0))
        of_best, of_off = means[-1] / means[:-1].max(), means[-1] / means[0]
        figures = [f"{mean:.1f}" for mean in means]
        rows.append((of_best, [task, str(level), *figures, f"{of_best:.3f}", f"{of_off:.3f}"]))
    for _, row in sorted(rows):
        table.add_row(*row)
    mean = np.exp(np.mean([np.log(of_best) for of_best, _ in rows]))
    table.caption = f"geometric mean of best: {mean:.3f}"
    return table


# "\b" keeps typer from joining the lines of a paragraph, and with them the commands.
main.__doc__ = "\b\n" + __doc__.replace("\n\n", "\n\n\b\n")

if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(main)
    app()
