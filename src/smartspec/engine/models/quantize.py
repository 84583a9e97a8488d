"""Weights of a checkpoint in floats brought into GGUF's blocks of 32, weights only.

Embedding, linears and head; what is no plain module of torch's, or has an odd width, keeps its
floats. Outputs are those of the model with the rounded weights, no longer the checkpoint's.
"""

import gguf
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import nn

from smartspec.engine.models.quantized import QuantizedWeight, can_be_on_blocks, put_on_blocks

# 4 bits with a scale and a minimum lose less than with a scale alone.
TYPES = {"int8": GGMLQuantizationType.Q8_0, "int4": GGMLQuantizationType.Q4_1}
QUANTIZATIONS = ("auto", "none", *TYPES)


def quantize(model: nn.Module, block_type: GGMLQuantizationType) -> None:
    """Put the model's plain linears and embeddings on blocks of this type, in place."""
    block_size, _ = GGML_QUANT_SIZES[block_type]
    blocks: dict[int, torch.Tensor] = {}  # tied weights exist once
    weights = {
        path: module.weight.detach()
        for path, module in model.named_modules()
        if can_be_on_blocks(module) and module.weight.shape[1] % block_size == 0
    }
    for path, weight in weights.items():
        if weight.data_ptr() not in blocks:
            rounded = gguf.quantize(weight.float().numpy(), block_type)
            blocks[weight.data_ptr()] = torch.from_numpy(rounded)
        put_on_blocks(model, path, QuantizedWeight(blocks[weight.data_ptr()], block_type))
