"""The heads of EAGLE and EAGLE-2 (arXiv 2401.15077, 2406.16858): one decoder layer that predicts
the target's last hidden state.

Its entry at position p joins the embedding of token p + 1 and what the target's output embedding
read at p. What the layer computes stands for the same at p + 1: the target's output embedding makes
logits of it, the next pass reads it.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from transformers import LlamaConfig

from smartspec.engine.attention.ragged import AttentionPlan
from smartspec.engine.drafting.head.eagle3 import MLP, Projections
from smartspec.engine.drafting.head.runner import HeadRunner, packed_attention, packed_norm
from smartspec.engine.models.fusion import FusedMLP
from smartspec.engine.models.linear import make_linear


@dataclass(frozen=True)
class EagleConfig:
    """The shape of an EAGLE head."""

    layer: LlamaConfig  # of the decoder layer; vocab_size is the target's
    taps: tuple[int, ...]  # the target's last hidden state
    fc_bias: bool = False  # of the layer that joins embedding and hidden state

    @property
    def feature_size(self) -> int:
        return self.layer.hidden_size


class EagleHead(nn.Module):
    """The parameters, by the names of the original checkpoints; embedding and output embedding are
    the target's."""

    def __init__(self, config: EagleConfig):
        super().__init__()
        self.config = config
        size = config.layer.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=config.fc_bias)
        self.layers = nn.ModuleList([_Layer(config.layer)])

    @property
    def target_ids(self) -> torch.Tensor:
        """The target's id of every draft token, int64 [V]."""
        return torch.arange(self.config.layer.vocab_size, device=self.fc.weight.device)


class _Layer(nn.Module):
    """A Llama layer without the norm before its attention."""

    def __init__(self, layer: LlamaConfig):
        super().__init__()
        self.self_attn = Projections(layer, layer.hidden_size)
        self.post_attention_layernorm = nn.RMSNorm(layer.hidden_size, layer.rms_norm_eps)
        self.mlp = MLP(layer)


class PackedEagle(nn.Module):
    """An EAGLE head for drafting alone: the modules of fusion and linear, as HeadRunner needs them.
    output: the target's output embedding."""

    def __init__(self, head: EagleHead, output: nn.Module):
        super().__init__()
        layer = head.layers[0]
        self.fc = make_linear(head.fc.weight, head.fc.bias)
        self.attention = packed_attention(layer.self_attn, head.config.layer)
        self.mlp_norm = packed_norm(layer.post_attention_layernorm)
        self.mlp = FusedMLP(layer.mlp)
        self.lm_head = partial(output)  # no part of the head: it is packed and warm already

    @staticmethod
    def combine(features: torch.Tensor) -> torch.Tensor:
        """The target's last hidden state is what a pass reads."""
        return features

    def forward(
        self,
        embeds: torch.Tensor,
        hidden: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        plan: AttentionPlan,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output embedding's input and the next step's, [1, N, hidden_size] each."""
        hidden = self.fc(torch.cat([embeds, hidden], dim=-1))
        hidden = hidden + self.attention(hidden, turn, attention_plan=plan)[0]
        hidden = hidden + self.mlp(self.mlp_norm(hidden))
        return hidden, hidden


class EagleRunner(HeadRunner):
    """Passes of an EAGLE head, under the target's output embedding."""

    @staticmethod
    def pack(head: nn.Module, target: nn.Module) -> nn.Module:
        return PackedEagle(head, target.get_output_embeddings())
