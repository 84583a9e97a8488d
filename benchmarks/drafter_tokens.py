"""Emitted tokens per step of each drafter, by task: what its drafts are worth before anything is said of time.

Every draft has the given number of nodes, however many of them are right: a chain of 5 costs a target pass over 6
tokens, a tree of 16 one over 17. One request at a time, so that what a drafter remembers is of the requests before.

    python benchmarks/drafter_tokens.py --drafters prompt-lookup,recycling,ngram-tree --nodes 5,16
    python benchmarks/drafter_tokens.py --temperature 0.8 --prompts FOLDER --per-task 8

A model's name among the drafters is that of a draft model, as in `smartspec serve --drafter`.
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

from smartspec.bench.report import write_json
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.build import Engine, build_engine
from smartspec.engine.runtime.config import EngineConfig
from smartspec.workload.prompts import Prompt

MAX_MODEL_LEN = 2048


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
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Print a table of emitted tokens per step."""
    tasks = {task: some[:per_task] for task, some in prompts_by_task(prompts).items() if task != MIXED}
    cells: dict[str, dict[str, float]] = {}
    for name in drafters.split(","):
        for num in nodes.split(","):
            config = EngineConfig(
                model=model,
                drafters=(name,),
                policy=f"fixed:{int(num)}",
                max_draft_tokens=int(num),
                max_batch=1,
                max_model_len=MAX_MODEL_LEN,
            )
            engine = build_engine(config)
            params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
            cells[f"{name} {num}"] = {task: tokens_per_step(engine, some, params) for task, some in tasks.items()}
    _print(cells, list(tasks))
    if output is not None:
        write_json(output, {"temperature": temperature, "per_task": per_task, "tokens_per_step": cells})


def tokens_per_step(engine: Engine, prompts: Sequence[Prompt], params: SamplingParams) -> float:
    """Emitted tokens of a decoding request in a step, over all prompts that fit."""
    num_rows = num_accepted = 0
    for number, prompt in enumerate(prompts):
        chat = [{"role": "user", "content": prompt.text}]
        token_ids = engine.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        if len(token_ids) + params.max_tokens > engine.max_model_len:
            continue
        stop = engine.loaded.eos_token_ids
        engine.core.add_request(Request(number, token_ids, params, seed=number, stop_token_ids=stop))
        while engine.core.has_work:
            step = engine.core.step(time.monotonic())
            num_rows += len(step.verified_lengths)
            num_accepted += step.num_accepted_tokens
    return 1.0 + num_accepted / max(num_rows, 1)


def _print(cells: dict[str, dict[str, float]], tasks: list[str]) -> None:
    table = Table("drafter, nodes", *tasks, "mean", title="emitted tokens per step")
    for name, values in cells.items():
        table.add_row(name, *(f"{values[task]:.2f}" for task in tasks), f"{np.mean(list(values.values())):.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
