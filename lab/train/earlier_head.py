"""An EAGLE-3 head that was trained before, by this package or another, to learn on or beside it."""

from pathlib import Path

import torch

from smartspec.engine.drafting.head.eagle3 import Eagle3Head
from smartspec.engine.drafting.head.kinds import load_head
from smartspec.engine.drafting.head.shared_rows import output_rows
from smartspec.engine.models.load import load_model


def earlier_head(model: str, folder: Path, purpose: str) -> tuple[Eagle3Head, torch.Tensor, bool]:
    """The head in folder for this target, the embedding that it reads [V, hidden_size], and whether
    it brings that. No weight is learned yet.

    purpose: what only heads of this kind are for, as the error says it. Raises ValueError where it
    is of another kind, and as load_head."""
    loaded = load_model(model, dtype="float32", device="cpu", quantization="none")
    head, embedding = load_head(folder, loaded)
    if type(head) is not Eagle3Head:
        raise ValueError(f"{folder} is no EAGLE-3 head, and only {purpose}: give another folder")
    if head.lm_head is None:
        head.lm_head = output_rows(loaded.model.get_output_embeddings(), head.target_ids)
    brings_one = embedding is not None
    if embedding is None:
        embedding = loaded.model.get_input_embeddings().weight.detach().clone()
    return head, embedding, brings_one


def head_to_learn_on(model: str, folder: Path, taps: tuple[int, ...]) -> Eagle3Head:
    """The same to go on learning from signals of these taps: all its weights but its output
    embedding.

    Raises ValueError where it reads others, or brings an embedding, which what is written would
    lack."""
    head, _, brings_one = earlier_head(model, folder, "from these training goes on")
    if brings_one or not head.config.has_lm_head:
        what = (
            "brings an embedding of its own" if brings_one else "has no output embedding of its own"
        )
        raise ValueError(
            f"{folder} {what}, from which training cannot go on: give the folder of another head"
        )
    if head.config.taps != taps:
        raise ValueError(
            f"{folder} reads what the target's first {head.config.taps} layers have computed, the "
            f"signals are those of {taps}: give a head that reads these"
        )
    head.requires_grad_(True).train()
    head.lm_head.requires_grad_(False)
    return head
