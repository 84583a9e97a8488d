"""Weights in floats of 16 bits that stay as they are, while the model computes in fp32.

Plain linears and embeddings are put on them as on GGUF's BF16 and F16, so our kernels read half of
fp32's bytes and compute exactly what the model in fp32 would. Whatever else has weights gets them
in fp32.
"""

import torch
from accelerate import init_empty_weights
from gguf import GGMLQuantizationType
from torch import nn
from transformers import AutoModelForCausalLM

from smartspec.engine.models.quantized import (
    QuantizedEmbedding,
    QuantizedWeight,
    can_be_on_blocks,
    put_on_blocks,
    scale_of_embedding,
)

TYPES = {torch.bfloat16: GGMLQuantizationType.BF16, torch.float16: GGMLQuantizationType.F16}


def keep_half_weights(model: nn.Module) -> None:
    """Bring a stock model of any dtype to fp32, in place, but for linears and embeddings on 16-bit
    weights."""
    if all(parameter.dtype == torch.float32 for parameter in model.parameters()):
        return
    for path, module in list(model.named_modules()):
        if can_be_on_blocks(module) and module.weight.dtype in TYPES:
            blocks = module.weight.detach().contiguous().view(torch.uint8)
            put_on_blocks(model, path, QuantizedWeight(blocks, TYPES[module.weight.dtype]))
    model.float()
    model.config.dtype = torch.float32
    _renew_buffers(model)


def _renew_buffers(model: nn.Module) -> None:
    """Buffers that no checkpoint holds, and scales of embeddings, as they are made in fp32: made in
    16 bits, they were rounded."""
    with init_empty_weights(include_buffers=False):
        fresh = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    stored = fresh.state_dict().keys()
    for path, buffer in fresh.named_buffers():
        if path not in stored:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, buffer)
    for path, module in model.named_modules():
        if isinstance(module, QuantizedEmbedding):
            module.scale = scale_of_embedding(fresh.get_submodule(path))
