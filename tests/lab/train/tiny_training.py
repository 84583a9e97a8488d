"""What several tests of training use: short settings, the curve of a run, a target with other
weights."""

import json
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from lab.train.fit import TrainingSettings

SETTINGS = TrainingSettings(num_tokens=600, draft_vocab_size=16, checkpoint_seconds=1e9)


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
