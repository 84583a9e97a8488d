"""One EAGLE-3 head in stock vLLM and in our engine: how much of its drafts is accepted."""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from lib.commands import MIXED, prompts_by_task
from lib.drafter_tokens import make_core, token_ids_of
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.build import load_models
from smartspec.engine.runtime.config import EngineConfig


@dataclass(frozen=True)
class Acceptance:
    """answers: token ids of each prompt's. num_drafts: drafts verified. at_least: int [K], how many
    of them had at least 1, 2, ..., K tokens accepted."""

    answers: list[list[int]]
    num_drafts: int
    at_least: np.ndarray

    @property
    def survival(self) -> np.ndarray:
        """Chance that at least 1, 2, ..., K tokens are accepted: float [K]."""
        return self.at_least / max(self.num_drafts, 1)

    @property
    def tokens_per_step(self) -> float:
        return 1.0 + float(self.survival.sum())


def in_vllm(
    python: str, model: str, head: Path, prompts: list[list[int]], length: int, max_tokens: int
) -> Acceptance:
    """Of stock vLLM, in its own environment. ValueError if it fails."""
    job = {
        "model": model,
        "head": str(head),
        "num_draft_tokens": length,
        "max_tokens": max_tokens,
        "prompts": prompts,
    }
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / "job.json", Path(folder) / "result.json"]
        paths[0].write_text(json.dumps(job))
        script = Path(__file__).with_name("vllm_acceptance.py")
        done = subprocess.run([python, script, *paths], capture_output=True, text=True)
        if done.returncode:
            raise ValueError(
                f"vLLM failed with this head:\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
            )
        result = json.loads(paths[1].read_text())
    return Acceptance(
        result["answers"], result["num_drafts"], np.array(result["accepted_by_position"])
    )


def in_our_engine(
    config: EngineConfig, prompts: list[list[int]], length: int, max_tokens: int
) -> Acceptance:
    """Of our engine, one request at a time."""
    runners = load_models(config)
    core = make_core(runners, config.drafters[0], f"fixed:{length}", length)
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    answers, counts = [], np.zeros(length + 1, dtype=np.int64)
    for number, token_ids in enumerate(prompts):
        request = Request(
            number,
            token_ids,
            params,
            seed=number,
            stop_token_ids=runners.target.loaded.eos_token_ids,
        )
        core.add_request(request)
        while core.has_work:
            step = core.step(time.monotonic())
            if step.verified_lengths == (length,):  # at the end of an answer drafts are shorter
                counts[step.num_accepted_tokens] += 1
        answers.append(request.output_token_ids.tolist())
    return Acceptance(answers, int(counts.sum()), counts[::-1].cumsum()[::-1][1:])


def tokenized(
    config: EngineConfig, prompts: Path | None, per_task: int, max_tokens: int
) -> list[list[int]]:
    """Token ids of so many prompts of each task, of those that fit."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.model)
    tasks = {task: some for task, some in prompts_by_task(prompts).items() if task != MIXED}
    found = [
        token_ids_of(tokenizer, prompt) for some in tasks.values() for prompt in some[:per_task]
    ]
    return [
        token_ids for token_ids in found if len(token_ids) + max_tokens + 1 < config.max_model_len
    ]


def print_table(ours: Acceptance, theirs: Acceptance) -> float:
    """Returns the ratio of our tokens per step to vLLM's."""
    table = Table(
        "", *map(str, range(1, len(ours.at_least) + 1)), "tokens per step", "drafts", box=SIMPLE
    )
    for name, one in (("vLLM", theirs), ("SmartSpec's engine", ours)):
        table.add_row(
            name,
            *(f"{p:.3f}" for p in one.survival),
            f"{one.tokens_per_step:.3f}",
            str(one.num_drafts),
        )
    ratio, count = ours.tokens_per_step / theirs.tokens_per_step, len(ours.answers)
    same = sum(a == b for a, b in zip(ours.answers, theirs.answers, strict=True))
    console = Console(width=110)
    console.print(
        f"Chance that at least so many tokens of a draft are accepted; {count} prompts", table
    )
    console.print(
        f"ratio of tokens per step {ratio:.3f}; the same answer to {same} of {count} prompts"
    )
    return ratio
