"""Emitted tokens per step of each drafter, by task: what its drafts are worth before anything is said of time.

Every draft has the given number of nodes, however many of them are right: a chain of 5 costs a target pass over 6
tokens, a tree of 16 one over 17. One request at a time, so that what a drafter remembers is of the requests before.

    python benchmarks/drafter_tokens.py --drafters prompt-lookup,recycling,ngram-tree --nodes 5,16
    python benchmarks/drafter_tokens.py --drafters recycling,ngram-tree,head,ngram-tree+head --trees --nodes 16
    python benchmarks/drafter_tokens.py --temperature 0.8 --prompts FOLDER --per-task 8

Names are those of `smartspec serve --drafter`. Heads draft chains or, with --trees, EAGLE-2's trees, and with
ngram-tree+ before the name trees that take in those of ngram-tree.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from tasks import MIXED, PromptsPath, prompts_by_task
from transformers import PreTrainedTokenizerBase

from smartspec.bench.report import write_json
from smartspec.control.controller import Controller
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import FreeTests
from smartspec.core.batch import Batch
from smartspec.core.blocks import BlockManager
from smartspec.core.drafter import Drafter
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.drafters.drafter_names import is_model_free, model_free_drafter
from smartspec.drafters.ngram_tree import NgramTreeDrafter
from smartspec.engine.drafting.with_ngrams import WithNgrams
from smartspec.engine.runtime.build import Models, load_models
from smartspec.engine.runtime.config import BLOCK_SIZE, EngineConfig
from smartspec.engine.runtime.executor import LiveExecutor
from smartspec.workload.prompts import Prompt

MAX_MODEL_LEN = 2048
BESIDE_NGRAMS = "ngram-tree+"


def main(
    drafters: Annotated[str, typer.Option(help="Names as in --drafter, separated by commas.")] = (
        "prompt-lookup,recycling,ngram-tree"
    ),
    nodes: Annotated[str, typer.Option(help="Nodes of every draft, separated by commas.")] = "5,16",
    prompts: PromptsPath = None,
    per_task: Annotated[int, typer.Option(help="Prompts of each task.", min=1)] = 4,
    max_tokens: Annotated[int, typer.Option(help="New tokens of each prompt.", min=2)] = 96,
    temperature: Annotated[float, typer.Option(help="0: greedy.", min=0.0)] = 0.0,
    model: Annotated[str, typer.Option(help="Target.")] = EngineConfig.model,
    quantization: Annotated[str, typer.Option(help="none: heads keep fp32, see `smartspec serve`.")] = "auto",
    trees: Annotated[bool, typer.Option(help="Heads draft trees: the best nodes of up to 8 passes.")] = False,
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Print a table of emitted tokens per step."""
    tasks = {task: some[:per_task] for task, some in prompts_by_task(prompts).items() if task != MIXED}
    names = tuple(drafters.split(","))
    loaded = tuple(dict.fromkeys(name.removeprefix(BESIDE_NGRAMS) for name in names))
    limits = {"max_batch": 1, "max_model_len": MAX_MODEL_LEN}
    config = EngineConfig(model=model, drafters=loaded, quantization=quantization, **limits)
    models = load_models(config)
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    cells: dict[str, dict[str, float]] = {}
    for name in names:
        for num in map(int, nodes.split(",")):
            core = make_core(models, name, f"eagle2:{num}" if trees else f"fixed:{num}", num)
            tokenizer = models.target.loaded.tokenizer
            cells[f"{name} {num}"] = {
                task: tokens_per_step(core, [token_ids_of(tokenizer, prompt) for prompt in some], params)
                for task, some in tasks.items()
            }
    _print(cells, list(tasks))
    if output is not None:
        write_json(output, {"temperature": temperature, "per_task": per_task, "trees": trees, "tokens_per_step": cells})


def make_core(models: Models, name: str, policy: str, num_nodes: int) -> EngineCore:
    """One drafter, all of whose drafts have so many nodes: no time is asked for, so none is measured."""
    drafter = make_drafter(models, name, num_nodes)
    curve = CostCurve.linear(1.0, 0.0)
    latency = LatencyModel(curve, (curve if drafter.spec.has_passes else None,))
    controller = Controller(policy, num_nodes, latency, drafters=(drafter.spec,))
    scheduler = Scheduler(
        BlockManager(models.kv_tokens // BLOCK_SIZE, BLOCK_SIZE, 1),
        max_batched_tokens=EngineConfig.max_batched_tokens,
        max_model_len=models.target.max_len,
        max_draft_tokens=num_nodes,
    )
    return EngineCore(scheduler, LiveExecutor(models.target, (drafter,)), controller)


class HeadAndNgrams(WithNgrams):
    """Both as one drafter."""

    def begin_step(self, batch: Batch) -> None:
        self._ngrams.begin_step(batch)
        super().begin_step(batch)

    def observe(self, *step) -> FreeTests:
        self._ngrams.observe(*step)
        return super().observe(*step)


def make_drafter(models: Models, name: str, num_nodes: int) -> Drafter:
    if name.startswith(BESIDE_NGRAMS):
        head = make_drafter(models, name.removeprefix(BESIDE_NGRAMS), num_nodes)
        return HeadAndNgrams(head, NgramTreeDrafter(max_draft_tokens=num_nodes))
    if is_model_free(name):
        return model_free_drafter(name, num_nodes)
    return next(drafter for drafter in models.profiled if drafter.spec.name == name)


def token_ids_of(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """The prompt as a chat of one message."""
    chat = [{"role": "user", "content": prompt.text}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


def tokens_per_step(core: EngineCore, prompts: Sequence[list[int]], params: SamplingParams) -> float:
    """Emitted tokens of a decoding request in a step, over all prompts that fit."""
    assert isinstance(core.executor, LiveExecutor)
    stop = core.executor.runner.loaded.eos_token_ids
    num_rows = num_accepted = 0
    for number, token_ids in enumerate(prompts):
        if len(token_ids) + params.max_tokens > core.scheduler.max_model_len:
            continue
        core.add_request(Request(number, token_ids, params, seed=number, stop_token_ids=stop))
        while core.has_work:
            step = core.step(time.monotonic())
            num_rows += len(step.verified_lengths)
            num_accepted += step.num_accepted_tokens
    return 1.0 + num_accepted / max(num_rows, 1)


def _print(cells: dict[str, dict[str, float]], tasks: list[str]) -> None:
    table = Table("drafter, nodes", *tasks, "mean", title="emitted tokens per step")
    for name, values in cells.items():
        table.add_row(name, *(f"{values[task]:.2f}" for task in tasks), f"{np.mean(list(values.values())):.2f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)
