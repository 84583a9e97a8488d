"""Weights of a checkpoint in floats brought into GGUF's blocks of 32, weights only.

Embedding, linears and head; what is no plain module of torch's, or has an odd width, keeps its
floats. Outputs are those of the model with the rounded weights, no longer the checkpoint's. Blocks
are kept in the cache folder, so that the next start does not round again.
"""

import hashlib
import logging
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from smartspec.engine.cache_folder import cache_folder, make_once, why_untrusted
from smartspec.engine.models.quantized import QuantizedWeight, can_be_on_blocks, put_on_blocks

# 4 bits with a scale and a minimum lose less than with a scale alone.
TYPES = {"int8": GGMLQuantizationType.Q8_0, "int4": GGMLQuantizationType.Q4_1}
QUANTIZATIONS = ("auto", "none", *TYPES)
NUM_SAMPLES = 16  # of each weight, by which a checkpoint is told from another
_FILE = "blocks.safetensors"

logger = logging.getLogger(__name__)


def quantize(model: nn.Module, block_type: GGMLQuantizationType, folder: Path | None) -> None:
    """Put the model's plain linears and embeddings on blocks of this type, in place.

    folder: where the checkpoint lies, for the cache; None does without. Raises OSError where that
    cannot be written.
    """
    block_size, _ = GGML_QUANT_SIZES[block_type]
    weights = {
        path: module.weight
        for path, module in model.named_modules()
        if can_be_on_blocks(module) and module.weight.shape[1] % block_size == 0
    }
    blocks = _encoded(weights, block_type) if folder is None else _kept(weights, block_type, folder)
    first_of: dict[int, str] = {}
    for path, weight in weights.items():
        owner = first_of.setdefault(weight.data_ptr(), path)  # tied weights exist once
        put_on_blocks(model, path, QuantizedWeight(blocks[owner], block_type))


def _kept(
    weights: dict[str, torch.Tensor], block_type: GGMLQuantizationType, folder: Path
) -> dict[str, torch.Tensor]:
    """The blocks as the cache has them, made where it has none. What another user may have written,
    or was made of something else or otherwise, is not used."""
    key = _digest(folder, weights)
    path = cache_folder() / "quantized" / f"{key}-{block_type.name}"
    if path.exists() and (reason := why_untrusted(path)):
        logger.warning(
            "%s: the rounded weights that lie there are not used, they are made anew", reason
        )
        return _encoded(weights, block_type)
    found = _read(path / _FILE, weights, block_type, key)
    if found is None:
        shutil.rmtree(path, ignore_errors=True)
        found, made_of = _encoded(weights, block_type), {"made_of": key}
        make_once(path, lambda made: save_file(found, made / _FILE, metadata=made_of))
    return found


def _read(
    file: Path, weights: dict[str, torch.Tensor], block_type: GGMLQuantizationType, key: str
) -> dict[str, torch.Tensor] | None:
    """Read the rounded weights; None where there are no whole blocks of exactly these weights."""
    if not file.exists() or why_untrusted(file):
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            is_of_these = (opened.metadata() or {}).get("made_of") == key
        found = load_file(file) if is_of_these else {}
    except (SafetensorError, OSError):
        return None
    size, num_bytes = GGML_QUANT_SIZES[block_type]
    wanted = {
        path: (len(weight), weight.shape[1] // size * num_bytes)
        for path, weight in _distinct(weights).items()
    }
    return (
        found if {path: tuple(blocks.shape) for path, blocks in found.items()} == wanted else None
    )


def _distinct(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tied weights once, by their first name."""
    return dict(
        {weight.data_ptr(): (path, weight) for path, weight in reversed(weights.items())}.values()
    )


def _encoded(
    weights: dict[str, torch.Tensor], block_type: GGMLQuantizationType
) -> dict[str, torch.Tensor]:
    floats = {path: weight.detach().float().numpy() for path, weight in _distinct(weights).items()}
    return {
        path: torch.from_numpy(gguf.quantize(weight, block_type)) for path, weight in floats.items()
    }


def _digest(folder: Path, weights: dict[str, torch.Tensor]) -> str:
    """The digest of the code that rounds, of the names, sizes and times of the files with weights,
    and of some values of each weight: reading them whole would take longer than rounding."""
    code = [Path(file).read_bytes() for file in (__file__, gguf.quants.__file__)]
    files = sorted(
        path
        for pattern in ("*.safetensors", "*.bin", "config.json")
        for path in folder.glob(pattern)
    )
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    digest = hashlib.sha256(repr((np.__version__, code, str(folder.resolve()), facts)).encode())
    for path, weight in weights.items():
        values = weight.detach().flatten()[:: max(1, weight.numel() // NUM_SAMPLES)].float()
        digest.update(repr((path, tuple(weight.shape))).encode() + values.numpy().tobytes())
    return digest.hexdigest()[:16]
