"""One EAGLE-3 head in stock vLLM and in our engine: does it load in both, and is as much of its drafts accepted?

Chains of a fixed length, greedy, on the same prompts of each task, one target in float32 for both. Printed is the
chance that at least 1, 2, ... tokens of a draft are accepted, and emitted tokens per step. The exit status is 1 if
those differ by more than the tolerance.

    make test-vllm     # makes .venv-vllm and the model
    python benchmarks/vllm_head.py HEAD --vllm-python .venv-vllm/bin/python --model-path .venv-vllm/model

vLLM also counts what a last draft has beyond the end of an answer; long answers make that little.
"""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from drafter_tokens import make_core, token_ids_of
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from tasks import MIXED, PromptsPath, prompts_by_task

from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.build import load_models
from smartspec.engine.runtime.config import EngineConfig

MAX_MODEL_LEN = 2048


@dataclass(frozen=True)
class Acceptance:
    """answers: token ids of each prompt's. num_drafts: drafts verified. at_least: int [K], how many of them had at
    least 1, 2, ..., K tokens accepted."""

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


def in_vllm(python: str, model: str, head: Path, prompts: list[list[int]], length: int, max_tokens: int) -> Acceptance:
    """Of stock vLLM, in its own environment. ValueError if it fails."""
    job = {"model": model, "head": str(head), "num_draft_tokens": length, "max_tokens": max_tokens, "prompts": prompts}
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / "job.json", Path(folder) / "result.json"]
        paths[0].write_text(json.dumps(job))
        script = Path(__file__).with_name("vllm_acceptance.py")
        done = subprocess.run([python, script, *paths], capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"vLLM failed with this head:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
        result = json.loads(paths[1].read_text())
    return Acceptance(result["answers"], result["num_drafts"], np.array(result["accepted_by_position"]))


def in_our_engine(config: EngineConfig, prompts: list[list[int]], length: int, max_tokens: int) -> Acceptance:
    """Of our engine, one request at a time."""
    runners = load_models(config)
    core = make_core(runners, config.drafters[0], f"fixed:{length}", length)
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    answers, counts = [], np.zeros(length + 1, dtype=np.int64)
    for number, token_ids in enumerate(prompts):
        request = Request(number, token_ids, params, seed=number, stop_token_ids=runners.target.loaded.eos_token_ids)
        core.add_request(request)
        while core.has_work:
            step = core.step(time.monotonic())
            if step.verified_lengths == (length,):  # at the end of an answer drafts are shorter
                counts[step.num_accepted_tokens] += 1
        answers.append(request.output_token_ids.tolist())
    return Acceptance(answers, int(counts.sum()), counts[::-1].cumsum()[::-1][1:])


def tokenized(config: EngineConfig, prompts: Path | None, per_task: int, max_tokens: int) -> list[list[int]]:
    """Token ids of so many prompts of each task, of those that fit."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.model)
    tasks = {task: some for task, some in prompts_by_task(prompts).items() if task != MIXED}
    found = [token_ids_of(tokenizer, prompt) for some in tasks.values() for prompt in some[:per_task]]
    return [token_ids for token_ids in found if len(token_ids) + max_tokens + 1 < MAX_MODEL_LEN]


def main(
    head: Annotated[Path, typer.Argument(help="Folder of the head.", exists=True, file_okay=False, resolve_path=True)],
    vllm_python: Annotated[str, typer.Option(help="Python of the environment that holds vLLM.")],
    model_path: Annotated[str, typer.Option(help="Folder of the target.")],
    length: Annotated[int, typer.Option(min=1, help="Tokens of every draft.")] = 5,
    per_task: Annotated[int, typer.Option(min=1, help="Prompts of each task.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens of each prompt.")] = 128,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Relative, of emitted tokens per step.")] = 0.05,
    prompts: PromptsPath = None,
) -> None:
    # vLLM keeps a head as it is stored; our engine rounds its weights, unless told not to.
    limits = {"max_batch": 1, "max_model_len": MAX_MODEL_LEN}
    config = EngineConfig(model=model_path, drafters=(str(head),), quantization="none", **limits)
    token_ids = tokenized(config, prompts, per_task, max_tokens)
    ours = in_our_engine(config, token_ids, length, max_tokens)
    theirs = in_vllm(vllm_python, model_path, head, token_ids, length, max_tokens)
    table = Table("", *map(str, range(1, length + 1)), "tokens per step", "drafts", box=SIMPLE)
    for name, one in (("vLLM", theirs), ("SmartSpec's engine", ours)):
        table.add_row(name, *(f"{p:.3f}" for p in one.survival), f"{one.tokens_per_step:.3f}", str(one.num_drafts))
    ratio = ours.tokens_per_step / theirs.tokens_per_step
    same = sum(a == b for a, b in zip(ours.answers, theirs.answers, strict=True))
    console = Console(width=110)
    console.print(f"Chance that at least so many tokens of a draft are accepted; {len(token_ids)} prompts", table)
    console.print(f"ratio of tokens per step {ratio:.3f}; the same answer to {same} of {len(token_ids)} prompts")
    if abs(ratio - 1.0) > tolerance:
        raise typer.Exit(1)


# "\b" keeps typer from joining the lines of a paragraph, and with them the commands.
main.__doc__ = "\b\n" + __doc__.replace("\n\n", "\n\n\b\n")

if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(main)
    app()
