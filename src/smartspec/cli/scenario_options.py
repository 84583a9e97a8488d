"""Options that several commands have: the machine and the models of a simulated engine."""

from typing import Annotated

import typer

Hardware = Annotated[
    str,
    typer.Option(
        help="a100-80g, h100, h200, b200, l40s, a40, l4, a JSON file of measured curves, or a .jsonl file: the "
        "decision log of a live run, for its profile."
    ),
]
Model = Annotated[str, typer.Option(help="8b, 70b, or a shape like qwen-2.5-32b.")]
TensorParallel = Annotated[int, typer.Option(min=1, help="Devices per replica.")]
Drafter = Annotated[
    str, typer.Option(help="model, depth by depth; head, which makes trees too; or lookup, which costs nothing.")
]
DraftModel = Annotated[str | None, typer.Option(help="Shape of the draft model (default: an EAGLE head of the model).")]
