"""Fewer, larger operations in transformers' own decoder layers.

At one token a step of a small model spends a quarter of its time on element-wise operations and
dispatch rather than in linears. Three common modules have a form with fewer operations: MLPs (one
GEMM for gate and up), attention with rotary positions (one GEMM for query, key and value, one
rotation for query and key) and RMSNorm. On CPU what is left between the GEMMs runs in kernels of
our own (elementwise). Modules are recognised by their parts, not by their class, and a replacement
is kept only if it reproduces the original on random input; an architecture that differs keeps its
own modules.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from smartspec.engine.attention.probe import probe, recorded_attention
from smartspec.engine.kernels.cpu import elementwise
from smartspec.engine.models.linear import is_linear, joined, prepared

# linears of attention, beside o_proj
QUERY_KEY_VALUE = (("q_proj", "k_proj", "v_proj"), ("qkv_proj",))
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu_squared": lambda x: F.relu(x).square(),
}
NUM_PROBE_ROWS = 3
# of the largest magnitude, in fp32; a coarser dtype gets two of its rounding steps
RELATIVE_TOLERANCE = 1e-5


def fuse(model: nn.Module) -> dict[str, int]:
    """Replace modules of the model in place; returns how many of each kind, {"attentions": 30,
    "mlps": 30, ...}."""
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
    """down(act(gate(x)) * up(x)) with gate and up as one GEMM, or down(act(up(x))); x [...,
    hidden_size]."""

    def __init__(self, mlp: nn.Module):
        """mlp: its linears are gate, up and down, or gate and up in one and down, or up and down.
        Raises ValueError for others."""
        super().__init__()
        *inner, down = (module for module in mlp.children() if is_linear(module))
        (self.act_fn,) = (
            module for module in mlp.children() if not is_linear(module) and not _is_idle(module)
        )
        if not inner:
            raise ValueError("an MLP has two linears at least")
        self.gate_up, self.down = joined(inner), prepared(down)
        self.is_gated = self.gate_up.out_features == 2 * self.down.in_features
        self.activation = _name_of(self.act_fn) if elementwise.applies_to(down.weight) else None
        self.has_kernel = self.activation is not None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.has_kernel:
            return self.down(
                elementwise.activate(self.gate_up(x), self.activation, is_gated=self.is_gated)
            )
        if not self.is_gated:
            return self.down(self.act_fn(self.gate_up(x)))
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.act_fn(gate).mul_(up))


class FusedAttention(nn.Module):
    """Llama-style attention (also with biases or query and key norms) up to the attention interface
    and after it.

    options: what the original module gives the attention interface besides the tensors; repeated
    unchanged. rotary_width: of the cosines and sines it is given, head_dim where None; turns:
    whether it uses them.
    """

    def __init__(
        self,
        attention: nn.Module,
        options: dict[str, object],
        rotary_width: int | None = None,
        turns: bool = True,
    ):
        super().__init__()
        self.config, self.layer_idx, self.head_dim = (
            attention.config,
            attention.layer_idx,
            attention.head_dim,
        )
        self.is_causal, self.options = True, options
        self.rotary_width, self.turns = rotary_width or self.head_dim, turns
        inner, out = _linears_of_attention(attention)
        self.qkv, self.out = joined(inner), prepared(out)
        self.num_heads = self.out.in_features // self.head_dim
        self.num_kv_heads = (self.qkv.out_features // self.head_dim - self.num_heads) // 2
        self.num_key_value_groups = self.num_heads // self.num_kv_heads
        self.q_norm, self.k_norm = (
            getattr(attention, "q_norm", None),
            getattr(attention, "k_norm", None),
        )
        width = 0 if self.q_norm is None else self.q_norm.weight.numel()
        self.norms_all_heads = width == self.num_heads * self.head_dim > self.head_dim
        self.has_kernel = elementwise.applies_to(out.weight)
        half = out.weight.new_ones(self.rotary_width // 2)
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
        """hidden_states [B, N, hidden_size] -> (the same shape, what the interface returned as
        weights).

        cache: the name of past_key_values from transformers 5.24 on."""
        heads = self._normed(self.qkv(hidden_states).unflatten(-1, (-1, self.head_dim)))
        query, key, value = (
            t.transpose(1, 2) for t in self._split(self._turned(heads, *position_embeddings))
        )
        cache = past_key_values if cache is None else cache
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        output, weights = attend(self, query, key, value, attention_mask, **self.options, **kwargs)
        return self.out(output.flatten(2)), weights

    def _normed(self, heads: torch.Tensor) -> torch.Tensor:
        """heads [B, N, all heads, head_dim] with query and key normed, each head or all of them at
        once."""
        if self.q_norm is None:
            return heads
        query, key, value = self._split(heads)
        if self.norms_all_heads:
            query, key = (
                self.q_norm(query.flatten(2)).view_as(query),
                self.k_norm(key.flatten(2)).view_as(key),
            )
        else:
            query, key = self.q_norm(query), self.k_norm(key)
        return torch.cat([query, key, value], dim=2)

    def _split(self, heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Query, key and value of [B, N, all heads, head_dim]."""
        return heads.tensor_split([self.num_heads, self.num_heads + self.num_kv_heads], dim=2)

    def _turned(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """heads [B, N, all heads, head_dim] with query and key rotated by their positions; may
        reuse their memory."""
        num_turned, width = self.num_heads + self.num_kv_heads, self.rotary_width
        if not self.turns:
            return heads
        if self.has_kernel:
            return elementwise.rotate_heads(heads, num_turned, cos, sin)
        turned = heads[:, :, :num_turned, :width]
        # rotate_half(x) * sin is x rolled by half a head, times sin with its first half negated.
        rolled, sin = turned.roll(width // 2, dims=-1), (sin * self.sign).unsqueeze(2)
        turned.copy_(torch.addcmul(turned * cos.unsqueeze(2), rolled, sin))
        return heads


class FusedRMSNorm(nn.Module):
    """weight * x / sqrt(mean(x^2) + eps); x [..., size], fp32 on CPU."""

    has_kernel = True

    def __init__(self, weight: nn.Parameter, eps: float):
        super().__init__()
        # Some models look at the weight's dtype; a copy, because the original holds a whole mapped
        # file in memory.
        self.weight = nn.Parameter(weight.clone(), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return elementwise.rms_norm(x, self.weight, self.eps)


def _rotary_widths(model: nn.Module) -> dict[nn.Module, int]:
    """Width of the cos and sin each module is given by its layer: head_dim, or less where only a
    part is rotated."""
    widths: dict[nn.Module, int] = {}

    def note(module: nn.Module, args: tuple, kwargs: dict[str, object]) -> None:
        positions = kwargs.get("position_embeddings")
        if isinstance(positions, tuple) and len(positions) == 2:
            widths[module] = positions[0].shape[-1]

    candidates = [module for module in model.modules() if _linears_of_attention(module)]
    with ExitStack() as hooks:
        for module in candidates:
            hooks.enter_context(module.register_forward_pre_hook(note, with_kwargs=True))
        if candidates:
            probe(model)
    return widths


def _fuse_children(
    parent: nn.Module, attempts: dict[str, Callable], counts: dict[str, int]
) -> None:
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
    children = [child for child in mlp.children() if not _is_idle(child)]
    linears = [child for child in children if is_linear(child)]
    if len(linears) not in (2, 3) or len(children) != len(linears) + 1:
        return None
    try:
        fused, x = FusedMLP(mlp), random_rows(linears[0].weight)
        return fused if _reproduces(fused, mlp, x) else None
    except (RuntimeError, TypeError, ValueError):
        # only one of gate and up is in blocks, or no MLP at all
        return None


def _is_idle(module: nn.Module) -> bool:
    """True if it only computes something in training."""
    return isinstance(module, nn.Dropout | nn.Identity)


def _name_of(activation: Callable[[torch.Tensor], torch.Tensor]) -> str | None:
    """The name in ACTIVATIONS of what it computes, None for another."""
    x = torch.linspace(-9, 9, 200)
    known = (name for name, function in ACTIVATIONS.items() if close(activation(x), function(x)))
    return next(known, None)


def _fused_norm(norm: nn.Module) -> nn.Module | None:
    weight = getattr(norm, "weight", None)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if (
        not type(norm).__name__.endswith("RMSNorm")
        or not isinstance(weight, nn.Parameter)
        or not eps
    ):
        return None
    fused: list[nn.Module]
    if elementwise.applies_to(weight):
        fused = [FusedRMSNorm(weight, eps), FusedRMSNorm(1 + weight, eps)]  # Gemma's count from 1
    else:
        fused = [nn.RMSNorm(weight.numel(), eps=eps, device="meta")]
        fused[0].weight = weight
    return next((made for made in fused if _reproduces(made, norm, random_rows(weight))), None)


def _fused_attention(attention: nn.Module, rotary_width: int | None) -> FusedAttention | None:
    """Compare what reaches the attention interface (tensors and options) and what comes out of the
    module."""
    linears = _linears_of_attention(attention)
    if not linears or not hasattr(attention, "layer_idx") or not rotary_width or rotary_width % 2:
        return None
    x = random_rows(linears[0][0].weight)
    # Unlike a real rotation these two differ in every column, which tells the variants of rotary
    # embedding apart.
    positions = _random(x, rotary_width), _random(x, rotary_width, seed=1)

    def run(module: nn.Module, positions: tuple[torch.Tensor, torch.Tensor] = positions) -> list:
        with recorded_attention(attention.config) as calls:
            output = module(hidden_states=x, position_embeddings=positions, attention_mask=None)[0]
        return [output, *((call.query, call.key, call.value, call.options) for call in calls)]

    try:
        output, (query, key, value, options) = run(attention)
        # layers without positions do not
        turns = not torch.equal(query, run(attention, positions[::-1])[1][0])
        fused = FusedAttention(attention, options, rotary_width, turns)
        fused_output, fused_call = run(fused)
    except (RuntimeError, TypeError, ValueError):
        # a signature or shapes of another kind: not a module we know
        return None
    same = all(map(close, (fused_output, *fused_call[:3]), (output, query, key, value)))
    return fused if same and fused_call[3] == options else None


def _linears_of_attention(module: nn.Module) -> tuple[list[nn.Module], nn.Module] | None:
    """The linear layers of query, key and value, and that of the output; None where it has
    others."""
    for names in QUERY_KEY_VALUE:
        linears = [getattr(module, name, None) for name in (*names, "o_proj")]
        if all(map(is_linear, linears)):
            return linears[:-1], linears[-1]
    return None


def random_rows(weight: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """[1, NUM_PROBE_ROWS, width of the weight]; one row so small that the epsilon of a norm
    shows."""
    x = _random(weight, weight.shape[-1], seed)
    x[:, 0] *= 1e-3
    return x


def _random(like: torch.Tensor, width: int, seed: int = 0) -> torch.Tensor:
    # the process's own random state stays as it is
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(
        1, NUM_PROBE_ROWS, width, device=like.device, dtype=like.dtype, generator=generator
    )


def _reproduces(fused: Callable, original: Callable, x: torch.Tensor) -> bool:
    return close(fused(x), original(x))


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if they are equal but for rounding, each row measured by its largest number."""
    tolerance = RELATIVE_TOLERANCE if b.dtype == torch.float32 else 2 * torch.finfo(b.dtype).eps
    scale = b.abs().amax(dim=-1, keepdim=True)
    return a.shape == b.shape and bool(((a - b).abs() <= tolerance * scale).all())
