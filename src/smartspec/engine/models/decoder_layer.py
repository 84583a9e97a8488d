"""Decoder layers whose parts are all fused, as one call each (kernels/cpu/passes.c).

Like the modules in fusion, a layer is recognised by its parts and replaced only if the replacement
reproduces it.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from smartspec.engine.attention.kv_cache import KVCache
from smartspec.engine.attention.ragged import ATTENTION_NAME, AttentionPlan, Segment
from smartspec.engine.kernels.cpu import native
from smartspec.engine.kernels.cpu.decoder_layer import (
    LIBRARY,
    Form,
    Layer,
    Norms,
    Pass,
    PlacedLayer,
)
from smartspec.engine.kernels.cpu.ragged_attention import max_tokens_per_tile
from smartspec.engine.kernels.cpu.shapes import LayerShape
from smartspec.engine.models.fusion import (
    NUM_PROBE_ROWS,
    FusedAttention,
    FusedMLP,
    FusedRMSNorm,
    close,
    random_rows,
)


@dataclass(frozen=True)
class Parts:
    """The parts of a layer: x + scale * after(attention(before(x))), and of that x + scale *
    after(mlp(before(x))), with a norm before or after each, or None."""

    attention: FusedAttention
    mlp: FusedMLP
    norms: tuple[nn.Module | None, ...]  # before and after attention, before and after the MLP
    residual_scale: float = 1.0  # the scale above


class FusedDecoderLayer(nn.Module):
    """A decoder layer in one call; fp32 on CPU.

    layer: what it replaces, whose modules are all fused; it still computes where our attention
    kernel does not. Neither its parameters nor those of its modules may move in memory afterwards.
    """

    def __init__(self, layer: nn.Module, parts: Parts):
        super().__init__()
        attention, mlp = parts.attention, parts.mlp
        self.layer = layer
        self.layer_idx, self.scale = (
            attention.layer_idx,
            attention.options.get("scaling") or attention.head_dim**-0.5,
        )
        self.shape = LayerShape(
            hidden_size=attention.out.out_features,
            intermediate_size=mlp.down.in_features,
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            rotary_width=attention.rotary_width,
        )
        self._norms = *parts.norms, attention.q_norm, attention.k_norm
        self._linears = attention.qkv, attention.out, mlp.gate_up, mlp.down
        self._parts = parts
        self.describe()

    def describe(self) -> None:
        """Tell the kernel anew where the parts lie, and what they are. Raises ValueError where they
        do not fit."""
        attention, mlp = self._parts.attention, self._parts.mlp
        (epsilon,) = {norm.eps for norm in self._norms if norm is not None}
        form = Form(
            epsilon,
            activation=mlp.activation,
            is_gated=mlp.is_gated,
            turns=attention.turns,
            norms_all_heads=attention.norms_all_heads,
            residual_scale=self._parts.residual_scale,
        )
        norms = Norms(*(None if norm is None else norm.weight for norm in self._norms))
        self._native = Layer.of(
            self.shape, norms, [linear.kernel_weights for linear in self._linears], form
        )

    def forward(self, hidden_states: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        """hidden_states [1, N, hidden_size] -> the same shape. kwargs: those of a layer of
        transformers."""
        plan = kwargs.get("attention_plan")
        if plan is None or plan.tiles is None:
            return self.layer(hidden_states, *args, **kwargs)
        placed = (PlacedLayer * 1)(self.placed(plan.cache, plan.windows))
        return self.of_pass(plan).run(placed, hidden_states, *kwargs["position_embeddings"])

    def placed(
        self, cache: KVCache, windows: tuple[int | None, ...], table: int = 0
    ) -> PlacedLayer:
        """The layer as the kernel is given it; the cache must outlive it, and so must this module
        as it is now described. table: see PlacedLayer.of."""
        index = self.layer_idx
        cached = cache.keys[index], cache.values[index]
        return PlacedLayer.of(self._native, self.shape, *cached, windows[index], self.scale, table)

    def of_pass(self, plan: AttentionPlan, num_tables: int = 1) -> Pass:
        """The values that layers of this shape share in a pass."""
        num_rows = len(plan.positions)
        of_tokens = plan.cache.keys[0], plan.tiles, plan.ancestors
        return plan.once(
            (self.shape, num_tables), lambda: Pass(self.shape, num_rows, *of_tokens, num_tables)
        )


def fuse_layers(model: nn.Module) -> int:
    """Replace decoder layers of a fused model in place; returns how many."""
    if (
        native.why_not(LIBRARY, model.device, model.dtype)
        or model.config._attn_implementation != ATTENTION_NAME
    ):
        return 0
    replacements = {path: _fused_layer(module) for path, module in model.named_modules()}
    replacements = {path: layer for path, layer in replacements.items() if layer is not None}
    for path, layer in replacements.items():
        model.set_submodule(path, layer)
    return len(replacements)


def describe_layers(model: nn.Module) -> None:
    """Describe the layers anew after the linears of fused layers have changed."""
    for module in model.modules():
        if isinstance(module, FusedDecoderLayer):
            module.describe()


@torch.inference_mode()
def _fused_layer(layer: nn.Module) -> FusedDecoderLayer | None:
    """The replacement of a layer that consists of parts it knows and computes what they do, checked
    on random input as the first tokens of a text."""
    attention = next(
        (child for child in layer.children() if isinstance(child, FusedAttention)), None
    )
    mlp = next((child for child in layer.children() if isinstance(child, FusedMLP)), None)
    if attention is None or mlp is None or not mlp.has_kernel:
        return None
    x, options = _probe_of(attention)
    called: list[nn.Module] = []
    try:
        with ExitStack() as hooks:
            for child in layer.children():
                hooks.enter_context(
                    child.register_forward_pre_hook(lambda child, args: called.append(child))
                )
            output = layer(x, **options)
    except (RuntimeError, TypeError, ValueError):
        # a signature of another kind: not a layer we know
        return None
    parts = _parts_of(
        attention, mlp, [child for child in called if not isinstance(child, nn.Dropout)]
    )
    if (
        parts is None
        or options["attention_plan"].tiles is None
        or not isinstance(output, torch.Tensor)
    ):
        return None
    try:
        fused = FusedDecoderLayer(
            layer, replace(parts, residual_scale=getattr(layer, "residual_multiplier", 1.0))
        )
    except ValueError:
        # parts of other sizes than a layer has, or norms that differ in their epsilon
        return None
    return fused if close(fused(x, **options), output) else None


def _parts_of(attention: FusedAttention, mlp: FusedMLP, called: list[nn.Module]) -> Parts | None:
    """called: the layer's modules in the order in which it calls them."""
    norms = [child for child in called if isinstance(child, FusedRMSNorm)]
    of_heads = [norm for norm in (attention.q_norm, attention.k_norm) if norm is not None]
    linears = attention.qkv, attention.out, mlp.gate_up, mlp.down
    if called.count(attention) != 1 or called.count(mlp) != 1 or len(called) != len(norms) + 2:
        return None
    if not all(isinstance(norm, FusedRMSNorm) for norm in of_heads):
        return None
    if not all(hasattr(linear, "kernel_weights") for linear in linears):
        return None
    first, second = called.index(attention), called.index(mlp)
    before, between, after = called[:first], called[first + 1 : second], called[second + 1 :]
    # a layer has its norms before its parts or, if there is none before attention, after them
    if len(between) == 1:
        between = [None, *between] if before else [*between, None]
    if len(before) > 1 or len(between) != 2 or len(after) > 1:
        return None
    return Parts(attention, mlp, (*(before or [None]), *between, *(after or [None])))


def first_tokens(
    heads: FusedAttention | LayerShape, num_layers: int, token_ids: np.ndarray
) -> AttentionPlan:
    """The attention of the first tokens of a text, int32 [n], over a cache of their own, on CPU.
    heads: of each layer."""
    device, group_size = torch.device("cpu"), heads.num_heads // heads.num_kv_heads
    cache = KVCache(
        num_layers=num_layers,
        num_slots=1,
        num_kv_heads=heads.num_kv_heads,
        max_len=len(token_ids),
        head_dim=heads.head_dim,
        dtype=torch.float32,
        device=device,
    )
    max_tile = max_tokens_per_tile(device, torch.float32, group_size, heads.head_dim)
    segments = [Segment(0, 0, token_ids, num_logits=1)]
    return AttentionPlan(segments, cache, (None,) * num_layers, device, max_tile)


def _probe_of(attention: FusedAttention) -> tuple[torch.Tensor, dict[str, object]]:
    """Random input of a layer, and its other arguments: these rows are the first tokens of a
    text."""
    plan = first_tokens(attention, attention.layer_idx + 1, np.zeros(NUM_PROBE_ROWS, np.int32))
    x = random_rows(torch.empty(1, attention.out.out_features))
    positions = tuple(random_rows(torch.empty(1, attention.rotary_width), seed) for seed in (0, 1))
    return x, {"attention_mask": None, "position_embeddings": positions, "attention_plan": plan}
