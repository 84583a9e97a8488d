"""What several tests of training use: short settings, the commands, the curve of a run, a target
with other weights."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from lab.train import run
from lab.train.fit import TrainingSettings

SETTINGS = TrainingSettings(num_tokens=600, draft_vocab_size=16, checkpoint_seconds=1e9)


def quiet(line: str) -> None:
    pass


def generate(
    target: Path | str,
    data: Path,
    num_tokens: int,
    *prompts: Path,
    say: Callable[[str], None] = quiet,
) -> None:
    """Lets the target write this many tokens."""
    run.generate_texts(str(target), data, num_tokens, prompts, 0, say)


def train(
    target: Path | str,
    data: Path,
    out: Path,
    settings: TrainingSettings = SETTINGS,
    say: Callable[[str], None] = quiet,
    **changes: object,
) -> Path:
    """Trains a head with these settings, some of them changed; returns its folder."""
    run.train_head(str(target), data, out, replace(settings, **changes), say)
    return out


def curve(folder: Path) -> list[dict]:
    def refuse(name: str):
        raise AssertionError(f"{name} is not JSON")

    return [
        json.loads(line, parse_constant=refuse)
        for line in (folder / "curve.jsonl").read_text().splitlines()
    ]


def changed(target: Path, folder: Path, change) -> Path:
    """A copy of the target whose model is changed in place."""
    shutil.copytree(target, folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        change(model)
    model.save_pretrained(folder)
    return folder
