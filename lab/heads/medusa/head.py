"""Medusa heads (arXiv 2401.10774): the k-th reads the target's last hidden state and predicts the
token k places after the next one.

They have no attention and so no KV: what the target computed of its newest position is all they
read, and one pass of all heads makes a draft.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from smartspec.engine.models.linear import make_linear


@dataclass(frozen=True)
class MedusaConfig:
    """The shape of Medusa heads."""

    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    num_heads: int  # tokens of a draft
    num_layers: int  # residual blocks of a head
    num_outputs: int  # output embeddings: one for all heads, or one for each
    taps: tuple[int, ...]  # the target's last hidden state
    bias: bool = False

    @property
    def feature_size(self) -> int:
        return self.hidden_size


class MedusaHead(nn.Module):
    """The parameters, by vLLM's names. token_map: int64 [draft_vocab_size], the target's id of
    every draft token."""

    def __init__(self, config: MedusaConfig):
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.blocks = nn.ModuleList(
            _Blocks(size, config.num_layers, config.bias) for _ in range(config.num_heads)
        )
        self.lm_heads = nn.ModuleList(
            nn.Linear(size, config.draft_vocab_size, bias=False) for _ in range(config.num_outputs)
        )
        self.register_buffer("token_map", torch.arange(config.draft_vocab_size))

    @property
    def target_ids(self) -> torch.Tensor:
        """The target's id of every draft token, token_map."""
        return self.token_map

    def output(self, head: int) -> nn.Module:
        """The output embedding that this head uses."""
        return self.lm_heads[min(head, len(self.lm_heads) - 1)]


class _Blocks(nn.Module):
    """Residual blocks: each adds silu of a linear layer."""

    def __init__(self, size: int, num_layers: int, bias: bool):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size, bias=bias) for _ in range(num_layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class PackedMedusa(nn.Module):
    """The heads for drafting alone, their linears as the target's own are."""

    def __init__(self, head: MedusaHead):
        super().__init__()
        for blocks in head.blocks:
            blocks.layers = nn.ModuleList(
                make_linear(layer.weight, layer.bias) for layer in blocks.layers
            )
        self.blocks, self.num_outputs = head.blocks, head.config.draft_vocab_size
        self.lm_heads = nn.ModuleList(
            make_linear(layer.weight, layer.bias) for layer in head.lm_heads
        )

    def forward(
        self, hidden: torch.Tensor, rows: torch.Tensor, heads: torch.Tensor
    ) -> torch.Tensor:
        """Logits [n, draft_vocab_size] of these heads for these rows of hidden [N, hidden_size];
        int64 [n] each, on the CPU, as they say which heads run."""
        made = torch.stack(
            [blocks(hidden[None])[0] for blocks in self.blocks[: int(heads.max()) + 1]]
        )
        wanted = made[heads, rows]
        if len(self.lm_heads) == 1:  # as one call: the output embedding is most of the work
            return self.lm_heads[0](wanted[None])[0]
        logits = hidden.new_empty(len(rows), self.num_outputs)
        for head, output in enumerate(self.lm_heads):
            of_head = (heads == head).nonzero()[:, 0]
            if len(of_head):
                logits[of_head] = output(wanted[None, of_head])[0]
        return logits
