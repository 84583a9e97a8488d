"""What a model hands to the attention interface, found by running it once with a stand-in that only takes notes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


@dataclass(frozen=True)
class AttentionCall:
    """query [1, num_heads, N, head_dim]; key, value [1, num_kv_heads, N, head_dim]; options: the keyword arguments."""

    module: nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    options: dict[str, object]


@contextmanager
def recorded_attention(config: PretrainedConfig) -> Iterator[list[AttentionCall]]:
    """Inside the block, modules with this config record their attention calls; each query head returns its value."""
    calls: list[AttentionCall] = []

    def record(module, query, key, value, attention_mask, **options):
        calls.append(AttentionCall(module, query, key, value, options))
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2), None

    name = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS[name] = record  # hides the registered function until it is deleted again
    try:
        yield calls
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]
