"""Perplexity of prompts with the activations of linears in 8 bits and in fp32."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from lib.commands import table_of
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.load import load_model
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.workload.prompts import read_prompts, shipped_prompts

FORMS = ("fp32", "int8")


def compare(
    model: str, quantization: str, prompts: Path | None, num_prompts: int, max_tokens: int
) -> None:
    """Print the table. Arguments are the options of `models.py perplexity`."""
    runners = {form: _runner(model, quantization, form, max_tokens) for form in FORMS}
    tokenizer = runners["fp32"].loaded.tokenizer
    files = (
        [None]
        if prompts is None
        else sorted(prompts.glob("*.jsonl"))
        if prompts.is_dir()
        else [prompts]
    )
    rows, everything = [], []
    for file in files:
        chosen = _spread(shipped_prompts() if file is None else read_prompts(file), num_prompts)
        texts = [tokenizer(prompt.text)["input_ids"][:max_tokens] for prompt in chosen]
        found = [
            _losses(runners, np.array(text, dtype=np.int32)) for text in texts if len(text) > 1
        ]
        losses = np.concatenate(found, axis=1)
        everything.append(losses)
        rows.append(_row("the package's" if file is None else file.stem, losses))
    if len(files) > 1:
        rows.append(_row("all", np.concatenate(everything, axis=1)))
    columns = (
        "prompts",
        "tokens",
        "fp32",
        "int8",
        "growth",
        "standard error",
        "exp(divergence) - 1",
    )
    Console(width=120).print(table_of(f"perplexity, {model}", columns, rows))


def _runner(model: str, quantization: str, activations: str, max_tokens: int) -> ModelRunner:
    loaded = load_model(model, device="cpu", quantization=quantization, activations=activations)
    return ModelRunner(loaded, num_slots=1, max_len=min(max_tokens, loaded.max_model_len))


def _spread(prompts: list, count: int) -> list:
    """So many, from the first to the last."""
    return prompts[:: max(1, len(prompts) // count)][:count]


def _losses(runners: dict[str, ModelRunner], tokens: np.ndarray) -> np.ndarray:
    """[3, tokens - 1]: of every token but the first its negative log-probability by FORMS, and the
    divergence of int8's prediction of it from fp32's, in nats."""
    segment = Segment(0, 0, tokens, len(tokens))
    fp32, int8 = (
        runners[form].forward([segment]).float().log_softmax(dim=-1)[:-1] for form in FORMS
    )
    following = torch.from_numpy(tokens[1:].astype(np.int64))[:, None]
    divergence = (fp32.exp() * (fp32 - int8)).sum(dim=-1)
    return torch.stack(
        [-fp32.gather(1, following)[:, 0], -int8.gather(1, following)[:, 0], divergence]
    ).numpy()


def _row(name: str, losses: np.ndarray) -> Iterable[str]:
    fp32, int8, divergence = losses.astype(np.float64)
    growth, error = np.expm1((int8 - fp32).mean()), (int8 - fp32).std() / len(fp32) ** 0.5
    figures = (
        f"{np.exp(fp32.mean()):.3f}",
        f"{np.exp(int8.mean()):.3f}",
        f"{growth:+.2%}",
        f"{error:.2%}",
    )
    return name, str(len(fp32)), *figures, f"{np.expm1(divergence.mean()):.2%}"
