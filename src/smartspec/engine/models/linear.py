"""Linear layers on CPU: fp32 weights reordered once, into panels for our kernels.

On another device or dtype, and without a compiler, layers stay `torch.nn.Linear`.
"""

import torch
from torch import nn

from smartspec.engine.kernels.cpu import native
from smartspec.engine.kernels.cpu.quantized_linear import LIBRARY
from smartspec.engine.models.panel_linear import PanelLinear
from smartspec.engine.models.quantized import QuantizedLinear


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module:
    """A linear layer over weight [out_features, in_features]: in panels where it can be, else
    `nn.Linear`."""
    if native.why_not(LIBRARY, weight.device, weight.dtype) is None:
        return PanelLinear(weight, bias)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear


def is_linear(module: object) -> bool:
    """True if it is a linear layer whose forward we know: torch's own, or one on weights in
    blocks."""
    return type(module) in (nn.Linear, QuantizedLinear)


def prepared(linear: nn.Linear | QuantizedLinear) -> nn.Module:
    """The layer in the form in which it is served: in panels, or as it is where its weights are in
    blocks."""
    return (
        linear if isinstance(linear, QuantizedLinear) else make_linear(linear.weight, linear.bias)
    )


def joined(linears: list[nn.Linear | QuantizedLinear]) -> nn.Module:
    """One layer whose output is the outputs of these side by side. Raises ValueError where only
    some are in blocks."""
    bias = _joined_bias(linears)
    kept = [linear for linear in linears if isinstance(linear, QuantizedLinear)]
    if not kept:
        return make_linear(torch.cat([linear.weight for linear in linears]), bias)
    if len(kept) < len(linears):
        raise ValueError("layers with weights in blocks and others cannot be joined")
    return QuantizedLinear([part for linear in kept for part in linear.parts], bias)


def _joined_bias(linears: list[nn.Linear | QuantizedLinear]) -> torch.Tensor | None:
    """Zeros for those that have none where others have one."""
    known = [linear.bias for linear in linears if linear.bias is not None]
    if not known:
        return None
    biases = [
        known[0].new_zeros(linear.out_features) if linear.bias is None else linear.bias
        for linear in linears
    ]
    return torch.cat(biases)


def pack_linears(model: nn.Module) -> int:
    """Replace every `nn.Linear` that can be packed in place; each plain weight is freed before the
    next is packed.

    A weight tied to the embedding stays for the lookups and exists twice afterwards. Returns how
    many were replaced.
    """
    # Subclasses may compute something else in their forward, so only the plain class is touched.
    paths = [path for path, module in model.named_modules() if type(module) is nn.Linear]
    num_packed = 0
    for path in paths:
        linear = model.get_submodule(path)
        packed = make_linear(linear.weight, linear.bias)
        if not isinstance(packed, nn.Linear):
            model.set_submodule(path, packed)
            num_packed += 1
    return num_packed
