"""Medusa heads on disk: the layout of the original checkpoints, and vLLM's."""

import re
from functools import partial
from pathlib import Path

import torch

from lab.heads.medusa.head import MedusaConfig, MedusaHead
from lab.heads.write import write_files
from smartspec.engine.drafting.head.checkpoint.files import (
    filled,
    in_floats,
    in_integers,
    read_json,
    read_tensors,
)
from smartspec.engine.models.loaded_model import LoadedModel

# (what it is called elsewhere, vLLM's name): the original heads are lists of blocks with the output
# embedding last.
NAMES = (
    (r"^medusa_heads?\.", ""),
    (r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2."),
    (r"^(\d+)\.\d+\.weight$", r"lm_heads.\1.weight"),
    (r"^lm_head\.weight$", "lm_heads.0.weight"),
)
BLOCK = re.compile(r"blocks\.(\d{1,6})\.layers\.(\d{1,6})\.")
MAX_HEADS = 1000


def read_medusa(folder: Path, target: LoadedModel) -> tuple[MedusaHead, None]:
    """Heads for this target in fp32, which bring no embedding. Raises ValueError where they are for
    another target, OSError where the checkpoint is damaged; both name the remedy."""
    weights = _weights(folder)
    config = _config(folder, read_json(folder / "config.json"), weights, target)
    _check_target(folder, config, weights, target)
    for name, tensor in weights.items():
        if (
            name.startswith("lm_heads.")
            and len(tensor) == config.vocab_size > config.draft_vocab_size
        ):
            weights[name] = tensor[weights["token_map"]]
    return filled(folder, partial(MedusaHead, config), weights), None


def write_medusa(folder: Path, head: MedusaHead) -> None:
    """Write heads in vLLM's layout in bfloat16, config.json last: a folder with one is whole.

    Raises OSError naming the file (disk full, no permission)."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.contiguous() if name == "token_map" else tensor.to(torch.bfloat16).contiguous()
        for name, tensor in head.state_dict().items()
    }
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": head.config.hidden_size,
        "vocab_size": head.config.vocab_size,
        "truncated_vocab_size": head.config.draft_vocab_size,
        "num_heads": head.config.num_heads,
        "num_hidden_layers": head.config.num_layers,
        "medusa_fc_bias": head.config.bias,
        "original_lm_head": head.config.num_outputs == 1,
    }
    write_files(folder, tensors, config)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """By vLLM's names, in fp32."""
    weights = {}
    for name, tensor in read_tensors(folder).items():
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        read = in_integers if name == "token_map" else in_floats
        weights[name] = read(folder, name, tensor)
    return weights


def _config(
    folder: Path, data: dict, weights: dict[str, torch.Tensor], target: LoadedModel
) -> MedusaConfig:
    """The shape of the heads: what config.json says in vLLM's layout; the original says nothing
    reliable, so that of the weights."""
    blocks = [(int(found[1]), int(found[2])) for found in map(BLOCK.match, weights) if found]
    outputs = sorted(name for name in weights if name.startswith("lm_heads."))
    if not blocks or not outputs or weights[outputs[0]].dim() != 2:
        raise OSError(
            f"{folder} holds no Medusa heads: give the folder of trained ones, or download them "
            "again"
        )
    num_heads, num_layers = (
        1 + max(head for head, _ in blocks),
        1 + max(layer for _, layer in blocks),
    )
    num_heads = data.get("num_heads") or num_heads
    if type(num_heads) is not int or not 1 <= num_heads <= MAX_HEADS or num_layers > MAX_HEADS:
        raise ValueError(
            f"{folder} holds {num_heads!r} Medusa heads of {num_layers} layers, 1 to {MAX_HEADS} "
            "can be: use others"
        )
    rows, size = weights[outputs[0]].shape
    token_map = weights.setdefault("token_map", torch.arange(rows))
    return MedusaConfig(
        hidden_size=size,
        vocab_size=data.get("vocab_size")
        or (rows if len(token_map) == rows else target.vocab_size),
        draft_vocab_size=len(token_map),
        num_heads=num_heads,
        num_layers=num_layers,
        num_outputs=1 if data.get("original_lm_head") else num_heads,
        taps=(target.num_layers + 1,),
        bias=any(name.startswith("blocks.") and name.endswith(".bias") for name in weights),
    )


def _check_target(
    folder: Path, config: MedusaConfig, weights: dict[str, torch.Tensor], target: LoadedModel
) -> None:
    size, ids = target.model.config.get_text_config().hidden_size, weights["token_map"]
    problem = None
    if config.hidden_size != size:
        problem = (
            f"they read hidden states of size {config.hidden_size}, the target's are of {size}"
        )
    elif config.vocab_size != target.vocab_size:
        problem = (
            f"they are for a vocabulary of {config.vocab_size} tokens, the target has "
            f"{target.vocab_size}"
        )
    elif ids.dim() != 1 or not len(ids):
        problem = f"token_map is of shape {tuple(ids.shape)}, it must be a list of tokens"
    elif (outside := (ids < 0) | (ids >= target.vocab_size)).any():
        problem = (
            f"token_map names token {int(ids[outside][0])}, the target has {target.vocab_size}"
        )
    if problem:
        raise ValueError(
            f"{folder} holds no Medusa heads for {target.name!r}: {problem}; use some that were "
            "trained for this target"
        )
