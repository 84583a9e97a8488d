"""ReDrafter heads on disk, in a layout of our own: config.json of model_type redrafter, weights by
the names of redrafter.py."""

from functools import partial
from pathlib import Path

import torch

from lab.heads.redrafter.head import ReDrafterConfig, ReDrafterHead
from lab.heads.write import write_files
from smartspec.engine.drafting.head.checkpoint.files import (
    filled,
    in_floats,
    in_integers,
    read_json,
    read_tensors,
)
from smartspec.engine.drafting.head.checkpoint.layer import MAX_SIZE
from smartspec.engine.drafting.head.checkpoint.taps import no_head
from smartspec.engine.drafting.head.checkpoint.vocabulary import check_ids
from smartspec.engine.models.loaded_model import LoadedModel

MODEL_TYPE = "redrafter"
SIZES = ("hidden_size", "vocab_size", "draft_vocab_size", "num_hidden_layers")


def read_redrafter(folder: Path, target: LoadedModel) -> tuple[ReDrafterHead, None]:
    """A head for this target in fp32, which brings no embedding. Raises ValueError where it is for
    another target, OSError where the checkpoint is damaged; both name the remedy."""
    data = read_json(folder / "config.json")
    for name in SIZES:
        if type(data.get(name)) is not int or not 0 <= data[name] <= MAX_SIZE:
            raise ValueError(
                f"{folder}: {name} is {data.get(name)!r}, it must be a number: train the head again"
            )
    size, vocab_size, draft_vocab_size, num_layers = (data[name] for name in SIZES)
    target_size, problem = target.model.config.get_text_config().hidden_size, None
    if size != target_size:
        problem = f"it reads hidden states of size {size}, the target's are of {target_size}"
    elif vocab_size != target.vocab_size:
        problem = (
            f"it is for a vocabulary of {vocab_size} tokens, the target has {target.vocab_size}"
        )
    if problem:
        raise no_head(folder, target, problem)
    weights = {
        name: (in_integers if name == "token_map" else in_floats)(folder, name, tensor)
        for name, tensor in read_tensors(folder).items()
    }
    config = ReDrafterConfig(
        size, vocab_size, draft_vocab_size, num_layers, taps=(target.num_layers + 1,)
    )
    head = filled(folder, partial(ReDrafterHead, config), weights)
    check_ids(folder, head.target_ids, target.vocab_size, target.name)
    return head, None


def write_redrafter(folder: Path, head: ReDrafterHead, target_name: str) -> None:
    """Write a head in bfloat16, config.json last: a folder with one is whole. Raises OSError naming
    the folder (disk full, no permission)."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.contiguous() if name == "token_map" else tensor.to(torch.bfloat16).contiguous()
        for name, tensor in head.state_dict().items()
    }
    config = head.config
    sizes = (config.hidden_size, config.vocab_size, config.draft_vocab_size, config.num_layers)
    write_files(
        folder,
        tensors,
        {"model_type": MODEL_TYPE, "target": target_name, **dict(zip(SIZES, sizes, strict=True))},
    )
