"""Decoder layers whose parts are all fused, as one call each (kernels/cpu/passes.c).

Like the modules in fusion, a layer is recognised by its parts and replaced only if the replacement reproduces it.
"""

import torch
from torch import nn

from smartspec.engine.attention.kv_cache import KVCache
from smartspec.engine.attention.ragged import ATTENTION_NAME, AttentionPlan, Segment
from smartspec.engine.kernels.cpu import native
from smartspec.engine.kernels.cpu.decoder_layer import LIBRARY, Layer, Pass, PlacedLayer
from smartspec.engine.kernels.cpu.ragged_attention import max_tokens_per_tile
from smartspec.engine.kernels.cpu.shapes import LayerShape
from smartspec.engine.models.fusion import NUM_PROBE_ROWS, FusedAttention, FusedMLP, FusedRMSNorm, close, random_rows


class FusedDecoderLayer(nn.Module):
    """A pre-norm decoder layer: x + attention(norm(x)), and of that x + mlp(norm(x)); fp32 on CPU.

    layer: what it replaces, whose modules are all fused; it still computes where our attention kernel does not. Neither
    its parameters nor those of its modules may move in memory afterwards.
    """

    def __init__(self, layer: nn.Module, attention: FusedAttention, mlp: FusedMLP, norms: list[FusedRMSNorm]):
        super().__init__()
        self.layer = layer
        self.layer_idx, self.scale = attention.layer_idx, attention.options.get("scaling") or attention.head_dim**-0.5
        self.shape = LayerShape(
            hidden_size=norms[0].weight.numel(),
            intermediate_size=mlp.down.in_features,
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
        )
        self._norms, self._norms_of_heads = tuple(norms), (attention.q_norm, attention.k_norm)
        self._linears = attention.qkv, attention.out, mlp.gate_up, mlp.down
        self.describe()

    def describe(self) -> None:
        """Tell the kernel anew where the parts lie, and what they are. Raises ValueError where they do not fit."""
        self._native = Layer.of(
            self.shape,
            tuple(norm.weight for norm in self._norms),
            tuple(None if norm is None else norm.weight for norm in self._norms_of_heads),
            [linear.kernel_weights for linear in self._linears],
            self._norms[0].eps,
        )

    def forward(self, hidden_states: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        """hidden_states [1, N, hidden_size] -> the same shape. kwargs: those of a layer of transformers."""
        plan = kwargs.get("attention_plan")
        if plan is None or plan.tiles is None:
            return self.layer(hidden_states, *args, **kwargs)
        placed = (PlacedLayer * 1)(self.placed(plan.cache, plan.windows))
        return self.of_pass(plan).run(placed, hidden_states, *kwargs["position_embeddings"])

    def placed(self, cache: KVCache, windows: tuple[int | None, ...]) -> PlacedLayer:
        """What the kernel is given; the cache must outlive it, and so must this module as it is now described."""
        index = self.layer_idx
        cached = cache.keys[index], cache.values[index]
        return PlacedLayer.of(self._native, self.shape, *cached, windows[index], self.scale)

    def of_pass(self, plan: AttentionPlan) -> Pass:
        """What layers of this shape share in a pass."""
        num_rows = len(plan.positions)
        of_tokens = plan.cache.keys[0], plan.tiles, plan.ancestors
        return plan.once(self.shape, lambda: Pass(self.shape, num_rows, num_rows - plan.num_tokens, *of_tokens))


def fuse_layers(model: nn.Module) -> int:
    """Replace decoder layers of a fused model in place; returns how many."""
    if native.why_not(LIBRARY, model.device, model.dtype) or model.config._attn_implementation != ATTENTION_NAME:
        return 0
    replacements = {path: _fused_layer(module) for path, module in model.named_modules()}
    replacements = {path: layer for path, layer in replacements.items() if layer is not None}
    for path, layer in replacements.items():
        model.set_submodule(path, layer)
    return len(replacements)


def describe_layers(model: nn.Module) -> None:
    """After the linears of fused layers have changed."""
    for module in model.modules():
        if isinstance(module, FusedDecoderLayer):
            module.describe()


@torch.inference_mode()
def _fused_layer(layer: nn.Module) -> FusedDecoderLayer | None:
    """The replacement of a layer that consists of these parts, in this order, and computes what it does."""
    children = list(layer.children())
    attentions = [child for child in children if isinstance(child, FusedAttention)]
    mlps = [child for child in children if isinstance(child, FusedMLP)]
    norms = [child for child in children if isinstance(child, FusedRMSNorm)]
    if (len(attentions), len(mlps), len(norms), len(children)) != (1, 1, 2, 4):
        return None
    (attention,), (mlp,) = attentions, mlps
    every_norm = [*norms, *(norm for norm in (attention.q_norm, attention.k_norm) if norm is not None)]
    linears = (attention.qkv, attention.out, mlp.gate_up, mlp.down)
    if not all(isinstance(norm, FusedRMSNorm) and norm.eps == norms[0].eps for norm in every_norm):
        return None
    if not mlp.has_kernel or not all(hasattr(linear, "kernel_weights") for linear in linears):
        return None
    try:
        fused = FusedDecoderLayer(layer, attention, mlp, norms)
    except ValueError:  # parts of other sizes than a layer of Llama's shape has
        return None
    return fused if _reproduces(fused, layer) else None


def _reproduces(fused: FusedDecoderLayer, layer: nn.Module) -> bool:
    """Compare them on random input, as the first tokens of a text."""
    shape, num_layers, device = fused.shape, fused.layer_idx + 1, torch.device("cpu")
    sizes = {"num_layers": num_layers, "num_slots": 1, "num_kv_heads": shape.num_kv_heads, "max_len": NUM_PROBE_ROWS}
    cache = KVCache(**sizes, head_dim=shape.head_dim, dtype=torch.float32, device=device)
    max_tile = max_tokens_per_tile(device, torch.float32, shape.num_heads // shape.num_kv_heads, shape.head_dim)
    tokens = torch.zeros(NUM_PROBE_ROWS, dtype=torch.int32).numpy()
    plan = AttentionPlan([Segment(0, 0, tokens, 1)], cache, (None,) * num_layers, device, max_tile)
    x = random_rows(torch.empty(1, shape.hidden_size))
    positions = tuple(random_rows(torch.empty(1, shape.head_dim), seed) for seed in (0, 1))
    options = {"attention_mask": None, "position_embeddings": positions, "attention_plan": plan}
    try:
        output = layer(x, **options)
    except (RuntimeError, TypeError, ValueError):  # a signature of another kind: not a layer we know
        return False
    return isinstance(output, torch.Tensor) and max_tile > 0 and close(fused(x, **options), output)
