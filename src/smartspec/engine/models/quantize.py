"""Weights of a checkpoint in floats brought into GGUF's blocks of 32, weights only.

Embedding, linears and head; what is no plain module of torch's, or has an odd width, keeps its floats. Outputs are
those of the model with the rounded weights, no longer the checkpoint's. Blocks are kept in the cache folder, so that
the next start does not round again.
"""

import hashlib
from pathlib import Path

import gguf
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors.torch import load_file, save_file
from torch import nn

from smartspec.engine.cache_folder import cache_folder, make_once
from smartspec.engine.models.quantized import QuantizedWeight, put_on_blocks

# 4 bits with a scale and a minimum lose less than with a scale alone.
TYPES = {"int8": GGMLQuantizationType.Q8_0, "int4": GGMLQuantizationType.Q4_1}
QUANTIZATIONS = ("auto", "none", *TYPES)
_FILE = "blocks.safetensors"


def quantize(model: nn.Module, block_type: GGMLQuantizationType, folder: Path | None) -> None:
    """Put the model's plain linears and embeddings on blocks of this type, in place.

    folder: where the checkpoint lies, for the cache; None does without. Raises OSError where that cannot be written.
    """
    weights = {path: module.weight for path, module in model.named_modules() if _is_quantizable(module, block_type)}
    if folder is None:
        blocks = _encoded(weights, block_type)
    else:
        path = cache_folder() / "quantized" / f"{_digest(folder)}-{block_type.name}"
        make_once(path, lambda made: save_file(_encoded(weights, block_type), made / _FILE))
        blocks = load_file(path / _FILE)
    first_of: dict[int, str] = {}
    for path, weight in weights.items():
        owner = first_of.setdefault(weight.data_ptr(), path)  # tied weights exist once
        put_on_blocks(model, path, QuantizedWeight(blocks[owner], block_type))


def _is_quantizable(module: nn.Module, block_type: GGMLQuantizationType) -> bool:
    is_plain = type(module) in (nn.Linear, nn.Embedding)
    return is_plain and module.weight.shape[1] % GGML_QUANT_SIZES[block_type][0] == 0


def _encoded(weights: dict[str, torch.Tensor], block_type: GGMLQuantizationType) -> dict[str, torch.Tensor]:
    distinct = {weight.data_ptr(): (path, weight) for path, weight in reversed(weights.items())}
    floats = {path: weight.detach().float().numpy() for path, weight in distinct.values()}
    return {path: torch.from_numpy(gguf.quantize(weight, block_type)) for path, weight in floats.items()}


def _digest(folder: Path) -> str:
    """Of the names, sizes and times of the files with weights: reading them whole would take longer than rounding."""
    files = sorted(path for pattern in ("*.safetensors", "*.bin", "config.json") for path in folder.glob(pattern))
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((str(folder.resolve()), facts)).encode()).hexdigest()[:16]
