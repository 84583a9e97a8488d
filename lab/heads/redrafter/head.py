"""The ReDrafter head (arXiv 2403.09919): a recurrent network that goes on from the target's last
hidden state.

At position p it is given the target's last hidden state h there and token p + 1. Its state begins
as that token's embedding, and takes in every draft token:

    s <- silu(U s + W e + b),   x = J [h, s],   x <- x + silu(B x) for each block,   logits = output embedding of x

It has no attention and so no KV. h stays the same along a draft.
"""  # noqa: E501

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class ReDrafterConfig:
    """The shape of a ReDrafter head."""

    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    num_layers: int  # residual blocks
    taps: tuple[int, ...]  # the target's last hidden state

    @property
    def feature_size(self) -> int:
        return self.hidden_size


class ReDrafterHead(nn.Module):
    """The parameters, without the target's embedding. token_map: int64 [draft_vocab_size], the
    target's id of every draft token."""

    def __init__(self, config: ReDrafterConfig):
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.rnn_u, self.rnn_w = nn.Linear(size, size), nn.Linear(size, size, bias=False)
        self.join = nn.Linear(2 * size, size)
        self.blocks = nn.ModuleList(nn.Linear(size, size) for _ in range(config.num_layers))
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self.register_buffer("token_map", torch.arange(config.draft_vocab_size))

    @property
    def target_ids(self) -> torch.Tensor:
        """The target's id of every draft token, token_map."""
        return self.token_map

    def next_state(self, embeds: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
        """The state [..., hidden_size] once a token with this embedding is known. state: before it;
        None: there is no draft token yet."""
        return embeds if state is None else F.silu(self.rnn_u(state) + self.rnn_w(embeds))

    def normed(self, hidden: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The output embedding's input, [..., hidden_size]. hidden: the target's last hidden
        state."""
        x = self.join(torch.cat([hidden, state], dim=-1))
        for block in self.blocks:
            x = x + F.silu(block(x))
        return x
