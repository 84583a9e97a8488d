"""The engine's knowledge of a model that is ready to serve."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from smartspec.engine.models.fused_pass import FusedPass


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to serve: eval mode, no gradients, our attention; on CPU its linears packed and
    modules fused."""

    name: str
    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]  # per layer, its sliding window in tokens, or None
    vocab_size: int  # the width of the logits
    max_model_len: int  # the positions it can be served with
    eos_token_ids: frozenset[int]
    dtype: torch.dtype  # of activations and KV
    device: torch.device
    weight_bytes: int  # the size of the distinct parameters as loaded, before packing
    # "int8" or "bfloat16" where the inputs of linears on blocks or bfloat16 are rounded to that,
    # else "fp32"
    activations: str = "fp32"
    fused_pass: FusedPass | None = None  # computes what the model does, where there is one
    # see models.sampling_defaults
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    # what the positions of max_model_len are
    max_model_len_reason: str = "the positions it was trained for"

    @property
    def coarsest_dtype(self) -> torch.dtype:
        """The coarsest of the dtypes that a pass rounds to."""
        return torch.bfloat16 if self.activations == "bfloat16" else self.dtype

    @property
    def profile_key(self) -> list:
        """The values on which the times of its passes depend beside the machine, JSON-able."""
        shape = [self.num_layers, self.num_kv_heads, self.head_dim, self.vocab_size]
        return [self.name, self.weight_bytes, str(self.dtype), self.activations, *shape]
