"""Linear layers on CPU: weights reordered once, into panels for our kernels or, without a compiler,
for oneDNN.

At the row counts speculation lives at (1 to 16) either is 1.6 to 5 times faster than the stock
call. Where neither applies (another device or dtype, a build without oneDNN) layers stay
`torch.nn.Linear`.
"""

import time

import torch
from torch import nn

from smartspec.engine.kernels.cpu import panel_linear
from smartspec.engine.models.panel_linear import PanelLinear, ReorderedLinear
from smartspec.engine.models.quantized import QuantizedLinear

PADDED_ROWS = 4
PAD_GAIN = 0.93  # padding itself costs a few microseconds a layer
PAD_REPETITIONS = 4
MAX_WARM_ROWS = 576
MAX_WARM_OUTPUTS = 49152 * 33

# the resolved overload: resolving it anew costs microseconds
_linear = torch.ops.mkldnn._linear_pointwise.default


class PackedLinear(ReorderedLinear):
    """Packed for oneDNN."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        super().__init__(weight, bias)
        # The number of rows is not known here; without one, oneDNN picks a layout that suits few
        # rows and many.
        self.packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        self.min_rows = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[-2]
        num_more = padded_rows(num_rows, self.min_rows) - num_rows
        # The head; for other layers the model runner pads the pass, where our attention runs.
        if num_more:
            x = nn.functional.pad(x, (0, 0, 0, num_more))
        output = _linear(x, self.packed_weight, self.bias, "none", [], "")
        return output[..., :num_rows, :] if num_more else output


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module:
    """A linear layer over weight [out_features, in_features]: in panels or packed where it can be,
    else `nn.Linear`."""
    if panel_linear.why_not(weight) is None:
        return PanelLinear(weight, bias)
    is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    if is_plain and torch.backends.mkldnn.is_available():
        return PackedLinear(weight, bias)
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
    """The layer in the form in which it is served: packed, or as it is where its weights are in
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


def padded_rows(num_rows: int, min_rows: int = 1) -> int:
    """Rows to compute for num_rows: as many where min_rows is 0, else at least min_rows (see
    pad_small_batches), and beyond 64 only some sizes, so that all of them can be warm. A padded row
    takes as long as a real one: they are at most 6 % of the rows."""
    if num_rows <= 64 or not min_rows:
        return max(num_rows, min_rows)
    step = 4 if num_rows <= 128 else 8 if num_rows <= 256 else 16
    return -(-num_rows // step) * step


@torch.inference_mode()
def warm_up(model: nn.Module) -> None:
    """Use every size of batch once for every shape of layer.

    oneDNN generates code at the first use of a size, 10 to 100 ms for a whole pass: speculation,
    whose batches differ in every step, would pay that in its first hundreds of steps, and the cost
    model would learn it.
    """
    layers = {
        (m.in_features, m.out_features): m for m in model.modules() if isinstance(m, PackedLinear)
    }
    sizes = sorted({padded_rows(num_rows) for num_rows in range(1, MAX_WARM_ROWS + 1)})
    for layer in layers.values():
        for num_rows in sizes:
            if num_rows * layer.out_features > MAX_WARM_OUTPUTS:
                break  # the head sees few rows, and large ones take long
            layer(torch.zeros(1, num_rows, layer.in_features))


@torch.inference_mode()
def pad_small_batches(model: nn.Module) -> int:
    """Let packed layers compute PADDED_ROWS rows where fewer are slower on this machine; returns
    the rows chosen, 0 where no layer is packed for oneDNN.

    oneDNN multiplies a single row with another kernel than several, on some processors a slower one
    (measured: 21.6 ms for all layers of the default model at one row, 18.3 ms at four). All layers
    are timed in turn, so that weights come from memory as they do in a step.
    """
    layers = [module for module in model.modules() if isinstance(module, PackedLinear)]
    if not layers:
        return 0

    def best_seconds(num_rows: int) -> float:
        inputs = [torch.ones(1, num_rows, layer.in_features) for layer in layers]
        durations = []
        for _ in range(PAD_REPETITIONS):
            began = time.perf_counter()
            for layer, x in zip(layers, inputs, strict=True):
                layer(x)
            durations.append(time.perf_counter() - began)
        return min(durations)

    min_rows = PADDED_ROWS if best_seconds(PADDED_ROWS) < PAD_GAIN * best_seconds(1) else 1
    for layer in layers:
        layer.min_rows = min_rows
    return min_rows
