"""The EAGLE-3 head (arXiv 2503.01840): one decoder layer that reads what some of the target's
layers have computed.

Its entry at position p takes the target's features at p and the embedding of token p + 1, and
predicts token p + 2 among the tokens of its own, smaller vocabulary. Parameters bear the names of
the `speculators` format, which vLLM loads too.
"""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from smartspec.engine.attention.ragged import AttentionPlan


@dataclass(frozen=True)
class HeadConfig:
    """The shape of an EAGLE-3 head, and its variant of the format, by that format's names."""

    layer: LlamaConfig  # of the decoder layer; vocab_size is the target's
    draft_vocab_size: int
    taps: tuple[int, ...]  # ascending; i is what the target's first i layers have computed
    target_hidden_size: int  # width of one tap
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    # else rows of the target's output embedding serve, those of the draft vocabulary
    has_lm_head: bool = True
    qk_norm: bool = False  # query and key are normed, as in Qwen3's layers

    @property
    def feature_size(self) -> int:
        return len(self.taps) * self.target_hidden_size


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """The taps that EAGLE-3's own code reads (SafeAILab/EAGLE, modeling_llama_kv.py: the inputs of
    layers 2, L // 2 and L - 3), which `speculators` (resolve_target_layer_ids) and vLLM
    (get_eagle3_default_aux_hidden_state_layers) assume where a checkpoint names none."""
    return 2, num_layers // 2, num_layers - 3


class Eagle3Head(nn.Module):
    """The parameters, without the target's embedding, and the parts of a pass that training and
    drafting share.

    d2t: int64 [draft_vocab_size], what to add to a draft token's id for the target's id of it.
    """

    def __init__(self, config: HeadConfig):
        super().__init__()
        self.config = config
        size, eps = config.layer.hidden_size, config.layer.rms_norm_eps
        self.fc = nn.Linear(config.feature_size, size, bias=False)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(
                nn.RMSNorm(config.target_hidden_size, eps) for _ in config.taps
            )
        if config.norm_before_fc:
            self.input_norm = nn.RMSNorm(config.feature_size, eps)
        self.layers = nn.ModuleList([_Layer(config)])
        self.norm = nn.RMSNorm(size, eps)
        self.lm_head = (
            nn.Linear(size, config.draft_vocab_size, bias=False) if config.has_lm_head else None
        )
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))

    @property
    def target_ids(self) -> torch.Tensor:
        """The target's id of every draft token, int64 [draft_vocab_size]."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def combine(self, features: torch.Tensor) -> torch.Tensor:
        """The target's features [..., feature_size] as the head's input [..., hidden_size]."""
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            chunks = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat(
                [norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], dim=-1
            )
        return self.fc(features)

    def forward(
        self,
        embeds: torch.Tensor,
        hidden: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        plan: AttentionPlan,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A pass of the packed head (HeadRunner.pack): the output embedding's input and the next
        step's, [1, N, hidden_size] each."""
        layer = self.layers[0]
        joined, residual = layer.attention_input(embeds, hidden)
        hidden = residual + layer.self_attn(joined, turn, attention_plan=plan)[0]
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        normed = self.norm(hidden)
        return normed, normed if self.config.norm_output else hidden


class _Layer(nn.Module):
    """A Llama layer whose attention reads the normed embedding beside the normed features."""

    def __init__(self, config: HeadConfig):
        super().__init__()
        size, eps = config.layer.hidden_size, config.layer.rms_norm_eps
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = nn.RMSNorm(size, eps)
        self.hidden_norm = nn.RMSNorm(size, eps)
        self.post_attention_layernorm = nn.RMSNorm(size, eps)
        self.self_attn = Projections(config.layer, 2 * size, config.qk_norm)
        self.mlp = MLP(config.layer)

    def attention_input(
        self, embeds: torch.Tensor, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The input of query, key and value, [..., 2 * hidden_size], and the residual."""
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        return torch.cat([self.input_layernorm(embeds), normed], dim=-1), residual

    def finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Compute what follows attention: attended [..., num_heads * head_dim] -> hidden [...,
        hidden_size]."""
        hidden = residual + self.self_attn.o_proj(attended)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Projections(nn.Module):
    """The linears of a Llama layer's attention, over an input of that size, and a Qwen3 layer's
    norms over head_dim."""

    def __init__(self, layer: LlamaConfig, input_size: int, qk_norm: bool = False):
        super().__init__()
        queries, keys = (
            layer.num_attention_heads * layer.head_dim,
            layer.num_key_value_heads * layer.head_dim,
        )
        self.q_proj = nn.Linear(input_size, queries, bias=layer.attention_bias)
        self.k_proj = nn.Linear(input_size, keys, bias=layer.attention_bias)
        self.v_proj = nn.Linear(input_size, keys, bias=layer.attention_bias)
        self.o_proj = nn.Linear(queries, layer.hidden_size, bias=layer.attention_bias)
        self.q_norm = nn.RMSNorm(layer.head_dim, layer.rms_norm_eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(layer.head_dim, layer.rms_norm_eps) if qk_norm else None


class MLP(nn.Module):
    """A Llama layer's MLP."""

    def __init__(self, layer: LlamaConfig):
        super().__init__()
        self.gate_proj = nn.Linear(layer.hidden_size, layer.intermediate_size, bias=layer.mlp_bias)
        self.up_proj = nn.Linear(layer.hidden_size, layer.intermediate_size, bias=layer.mlp_bias)
        self.down_proj = nn.Linear(layer.intermediate_size, layer.hidden_size, bias=layer.mlp_bias)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def rotary_tables(layer: LlamaConfig, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position, float32 [num_positions, head_dim]. Raises ValueError where
    they are of another width, as where only a part of a head is rotated."""
    positions = torch.arange(num_positions)[None]
    cos, sin = LlamaRotaryEmbedding(layer)(torch.zeros(1), positions)
    if cos.shape[-1] != layer.head_dim:
        raise ValueError(
            f"{cos.shape[-1]} of {layer.head_dim} dimensions of a head are rotated, all must be"
        )
    return cos[0], sin[0]
