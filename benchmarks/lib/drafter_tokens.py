"""Emitted tokens per step of each drafter, whose drafts all have the same number of nodes."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from lab.drafters.ngram_tree import NgramTree
from lab.drafters.with_ngrams import WithNgrams
from smartspec.control.controller import Controller
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import DrafterView, FreeTests
from smartspec.core.batch import Batch
from smartspec.core.blocks import BlockManager
from smartspec.core.drafter import Drafter
from smartspec.core.engine_core import EngineCore
from smartspec.core.policy_names import parse_policy
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.drafters.drafter_names import is_model_free, model_free_drafter
from smartspec.engine.runtime.build import Models, load_models
from smartspec.engine.runtime.config import BLOCK_SIZE, EngineConfig
from smartspec.engine.runtime.executor import LiveExecutor
from smartspec.workload.prompts import Prompt

BESIDE_NGRAMS = "ngram-tree+"
NGRAM_TREE = "lab.drafters.ngram_tree:NgramTree"


def compare(
    config: EngineConfig,
    names: Sequence[str],
    nodes: Sequence[int],
    params: SamplingParams,
    prompts: dict[str, list[Prompt]],
    *,
    trees: bool,
) -> dict[str, dict[str, float]]:
    """Tokens per step by drafter with number of nodes, and by task. What config says of drafters
    does not count."""
    loaded = tuple(dict.fromkeys(part for name in names for part in name.split("+")))
    models = load_models(replace(config, drafters=loaded))
    tokenizer, cells = models.target.loaded.tokenizer, {}
    for name, num in product(names, nodes):
        core = make_core(models, name, f"eagle2:{num}" if trees else f"fixed:{num}", num)
        cells[f"{name} {num}"] = {
            task: tokens_per_step(
                core, [token_ids_of(tokenizer, prompt) for prompt in some], params
            )
            for task, some in prompts.items()
        }
    return cells


def make_core(models: Models, name: str, policy: str, num_nodes: int) -> EngineCore:
    """One drafter, all of whose drafts have so many nodes: no decision needs a time, so none is
    measured."""
    drafter = make_drafter(models, name, num_nodes)
    curve = CostCurve.linear(1.0, 0.0)
    latency = LatencyModel(curve, (curve if drafter.spec.has_passes else None,))
    controller = Controller(
        parse_policy(policy, num_nodes), num_nodes, latency, drafters=(drafter.spec,)
    )
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

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        self._ngrams.view(batch, is_queried)
        return super().view(batch, is_queried)

    def observe(self, *step) -> FreeTests:
        self._ngrams.observe(*step)
        return super().observe(*step)


def make_drafter(models: Models, name: str, num_nodes: int) -> Drafter:
    if name.startswith(BESIDE_NGRAMS):
        head = make_drafter(models, name.removeprefix(BESIDE_NGRAMS), num_nodes)
        return HeadAndNgrams(
            head, NgramTree(max_draft_tokens=num_nodes, datastore=models.datastore)
        )
    name = {"ngram-tree": NGRAM_TREE}.get(name, name)
    if is_model_free(name):
        return model_free_drafter(name, num_nodes, models.datastore)
    return next(drafter for drafter in models.profiled if drafter.spec.name == name)


def token_ids_of(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """The prompt as a chat of one message."""
    chat = [{"role": "user", "content": prompt.text}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


def tokens_per_step(
    core: EngineCore, prompts: Sequence[list[int]], params: SamplingParams
) -> float:
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


def print_table(cells: dict[str, dict[str, float]], tasks: Iterable[str]) -> None:
    table = Table("drafter, nodes", *tasks, "mean", title="emitted tokens per step")
    for name, values in cells.items():
        table.add_row(
            name,
            *(f"{values[task]:.2f}" for task in tasks),
            f"{np.mean(list(values.values())):.2f}",
        )
    Console(width=140).print(table)
