"""The model card of a trained head: what it is for, how it was made, what it reached."""

import json
from dataclasses import asdict
from pathlib import Path

from lab.train.fit import CURVE, Training, TrainingSettings
from lab.train.shards import num_answer_tokens

TITLES = {
    "eagle3": "EAGLE-3 head",
    "p-eagle": "P-EAGLE head",
    "medusa": "Medusa heads",
    "redrafter": "ReDrafter head",
}
CARD = """# {title} for {model}

A drafter for speculative decoding{layout}: `smartspec serve {model} --drafter FOLDER`.

Trained by `python -m lab.train {model} --kind {kind} --data TEXTS --out FOLDER --tokens {tokens}`
on texts that the target wrote itself ({unique} answer tokens), its features and likeliest tokens recorded.

* Settings: `{settings}`
* Taps: what the target's first {taps} layers have computed
* Held-out rows, chance that a chain's next token is right, by position: {acceptance}
* Emitted tokens a step these would give with chains of {length}: {emitted}
"""  # noqa: E501


def write_card(
    folder: Path, model: str, data: Path, settings: TrainingSettings, training: Training
) -> None:
    """README.md beside the weights."""
    last = json.loads((folder / CURVE).read_text().splitlines()[-1])
    text = CARD.format(
        model=model,
        title=TITLES[settings.kind],
        kind=settings.kind,
        layout="" if settings.kind == "redrafter" else " in the format that vLLM loads",
        tokens=settings.num_tokens,
        unique=num_answer_tokens(data),
        settings=json.dumps(asdict(settings)),
        taps=", ".join(map(str, training.head.config.taps)),
        acceptance=last["acceptance"],
        length=len(last["acceptance"]),
        emitted=last["emitted_per_step"],
    )
    (folder / "README.md").write_text(text)
