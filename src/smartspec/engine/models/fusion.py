"""Fewer, larger operations in transformers' own decoder layers.

At one token a step of a small model spends a quarter of its time on element-wise operations and dispatch rather than in
linears. Three common modules have a form with fewer operations: gated MLPs (one GEMM for gate and up), attention with
rotary positions (one GEMM for query, key and value, one rotation for query and key) and RMSNorm. On CPU what is left
between the GEMMs runs in kernels of our own (elementwise). Modules are recognised by their parts, not by their class,
and a replacement is kept only if it reproduces the original on random input; an architecture that differs keeps its own
modules.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from smartspec.engine.attention.probe import probe, recorded_attention
from smartspec.engine.kernels.cpu import elementwise
from smartspec.engine.models.linear import is_linear, joined, prepared

ATTENTION_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj")
NUM_PROBE_ROWS = 3
RELATIVE_TOLERANCE = 1e-5  # of the largest magnitude, in fp32; a coarser dtype gets two of its rounding steps


def fuse(model: nn.Module) -> dict[str, int]:
    """Replace modules of the model in place; returns how many of each kind, {"attentions": 30, "mlps": 30, ...}."""
    widths = _rotary_widths(model)
    attempts = {
        "attentions": lambda module: _fused_attention(module, widths.pop(module, None)),
        "mlps": _fused_mlp,
        "norms": _fused_norm,
    }
    counts = dict.fromkeys(attempts, 0)
    with torch.no_grad():
        _fuse_children(model, attempts, counts)
    return counts


class FusedMLP(nn.Module):
    """down(act(gate(x)) * up(x)) with gate and up as one GEMM; x [..., hidden_size]."""

    def __init__(self, mlp: nn.Module):
        super().__init__()
        self.gate_up = joined([mlp.gate_proj, mlp.up_proj])
        self.down = prepared(mlp.down_proj)
        self.act_fn = mlp.act_fn
        is_silu = type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")  # torch's and transformers'
        self.has_kernel = is_silu and elementwise.applies_to(mlp.gate_proj.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.has_kernel:
            return self.down(elementwise.gated_silu(self.gate_up(x)))
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.act_fn(gate).mul_(up))


class FusedAttention(nn.Module):
    """Llama-style attention (also with biases or query and key norms) up to the attention interface and after it.

    options: what the original module gives the attention interface besides the tensors; repeated unchanged.
    """

    def __init__(self, attention: nn.Module, options: dict[str, object]):
        super().__init__()
        self.config, self.layer_idx, self.head_dim = attention.config, attention.layer_idx, attention.head_dim
        self.is_causal, self.options = True, options
        self.num_heads = attention.q_proj.out_features // self.head_dim
        self.num_kv_heads = attention.k_proj.out_features // self.head_dim
        self.num_key_value_groups = self.num_heads // self.num_kv_heads
        self.qkv = joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = prepared(attention.o_proj)
        self.q_norm, self.k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.has_kernel = elementwise.applies_to(attention.q_proj.weight)
        half = attention.q_proj.weight.new_ones(self.head_dim // 2)
        self.sign = torch.cat([-half, half])

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        past_key_values: object | None = None,
        cache: object | None = None,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states [B, N, hidden_size] -> (the same shape, what the interface returned as weights).

        cache: the name of past_key_values from transformers 5.24 on."""
        heads = self.qkv(hidden_states).unflatten(-1, (-1, self.head_dim))
        if self.q_norm is not None:
            query, key, value = self._split(heads)
            heads = torch.cat([self.q_norm(query), self.k_norm(key), value], dim=2)
        query, key, value = (t.transpose(1, 2) for t in self._split(self._turned(heads, *position_embeddings)))
        cache = past_key_values if cache is None else cache
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        output, weights = attend(self, query, key, value, attention_mask, **self.options, **kwargs)
        return self.out(output.flatten(2)), weights

    def _split(self, heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Query, key and value of [B, N, all heads, head_dim]."""
        return heads.tensor_split([self.num_heads, self.num_heads + self.num_kv_heads], dim=2)

    def _turned(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """heads [B, N, all heads, head_dim] with query and key rotated by their positions; may reuse their memory."""
        num_turned = self.num_heads + self.num_kv_heads
        if self.has_kernel:
            return elementwise.rotate_heads(heads, num_turned, cos, sin)
        turned = heads[:, :, :num_turned]
        # rotate_half(x) * sin is x rolled by half a head, times sin with its first half negated.
        rolled, sin = turned.roll(self.head_dim // 2, dims=-1), (sin * self.sign).unsqueeze(2)
        turned.copy_(torch.addcmul(turned * cos.unsqueeze(2), rolled, sin))
        return heads


class FusedRMSNorm(nn.Module):
    """weight * x / sqrt(mean(x^2) + eps); x [..., size], fp32 on CPU."""

    has_kernel = True

    def __init__(self, weight: nn.Parameter, eps: float):
        super().__init__()
        # Some models look at the weight's dtype; a copy, because the original holds a whole mapped file in memory.
        self.weight = nn.Parameter(weight.clone(), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return elementwise.rms_norm(x, self.weight, self.eps)


def _rotary_widths(model: nn.Module) -> dict[nn.Module, int]:
    """Width of the cos and sin each module is given by its layer: head_dim, or less where only a part is rotated."""
    widths: dict[nn.Module, int] = {}

    def note(module: nn.Module, args: tuple, kwargs: dict[str, object]) -> None:
        positions = kwargs.get("position_embeddings")
        if isinstance(positions, tuple) and len(positions) == 2:
            widths[module] = positions[0].shape[-1]

    candidates = [module for module in model.modules() if _has_linears(module, *ATTENTION_LINEARS)]
    handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in candidates]
    if candidates:
        probe(model)
    for handle in handles:
        handle.remove()
    return widths


def _fuse_children(parent: nn.Module, attempts: dict[str, Callable], counts: dict[str, int]) -> None:
    # Depth first and in place, so that the weights of what is replaced are freed layer by layer.
    for name, child in list(parent.named_children()):
        for kind, attempt in attempts.items():
            replacement = attempt(child)
            if replacement is not None:
                setattr(parent, name, replacement)
                counts[kind] += 1
                child = replacement
                break
        _fuse_children(child, attempts, counts)


def _fused_mlp(mlp: nn.Module) -> FusedMLP | None:
    if not _has_linears(mlp, "gate_proj", "up_proj", "down_proj") or not callable(getattr(mlp, "act_fn", None)):
        return None
    try:
        fused, x = FusedMLP(mlp), random_rows(mlp.gate_proj.weight)
    except ValueError:  # only one of gate and up is in blocks
        return None
    return fused if _reproduces(fused, mlp, x) else None


def _fused_norm(norm: nn.Module) -> nn.Module | None:
    weight = getattr(norm, "weight", None)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not type(norm).__name__.endswith("RMSNorm") or not isinstance(weight, nn.Parameter) or not eps:
        return None
    if elementwise.applies_to(weight):
        fused = FusedRMSNorm(weight, eps)
    else:
        fused = nn.RMSNorm(weight.numel(), eps=eps, device="meta")
        fused.weight = weight
    return fused if _reproduces(fused, norm, random_rows(weight)) else None


def _fused_attention(attention: nn.Module, rotary_width: int | None) -> FusedAttention | None:
    """Compare what reaches the attention interface (tensors and options) and what comes out of the module."""
    if not _has_linears(attention, *ATTENTION_LINEARS) or not hasattr(attention, "layer_idx"):
        return None
    if rotary_width != attention.head_dim or attention.head_dim % 2:
        return None
    x = random_rows(attention.q_proj.weight)
    # Unlike a real rotation these two differ in every column, which tells the variants of rotary embedding apart.
    positions = _random(x, attention.head_dim), _random(x, attention.head_dim, seed=1)

    def run(module: nn.Module) -> list:
        with recorded_attention(attention.config) as calls:
            output = module(hidden_states=x, position_embeddings=positions, attention_mask=None)[0]
        return [output, *((call.query, call.key, call.value, call.options) for call in calls)]

    try:
        output, (query, key, value, options) = run(attention)
        fused = FusedAttention(attention, options)
        fused_output, fused_call = run(fused)
    except (RuntimeError, TypeError, ValueError):  # a signature or shapes of another kind: not a module we know
        return None
    same = all(map(close, (fused_output, *fused_call[:3]), (output, query, key, value)))
    return fused if same and fused_call[3] == options else None


def _has_linears(module: nn.Module, *names: str) -> bool:
    return all(is_linear(getattr(module, name, None)) for name in names)


def random_rows(weight: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """[1, NUM_PROBE_ROWS, width of the weight]; one row so small that the epsilon of a norm shows."""
    x = _random(weight, weight.shape[-1], seed)
    x[:, 0] *= 1e-3
    return x


def _random(like: torch.Tensor, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(like.device).manual_seed(seed)  # the process's own random state stays as it is
    return torch.randn(1, NUM_PROBE_ROWS, width, device=like.device, dtype=like.dtype, generator=generator)


def _reproduces(fused: Callable, original: Callable, x: torch.Tensor) -> bool:
    return close(fused(x), original(x))


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether they are equal but for rounding, each row measured by its largest number."""
    tolerance = RELATIVE_TOLERANCE if b.dtype == torch.float32 else 2 * torch.finfo(b.dtype).eps
    scale = b.abs().amax(dim=-1, keepdim=True)
    return a.shape == b.shape and bool(((a - b).abs() <= tolerance * scale).all())
