"""Linear layers on fp32 weights in panels (panels.h), on CPU.

Why: oneDNN's packed linears take 1.3 to 1.6 times as long for 1 to 16 rows of the default model,
are not faster for 512, generate code anew for every number of rows, and cannot be called from a
kernel of ours.
"""

import torch

from smartspec.engine.kernels.cpu import quantized_linear
from smartspec.engine.kernels.cpu.quantized_linear import TYPE_PANELS, Weight
from smartspec.engine.kernels.cpu.shapes import address, optional_address


def to_panels(weight: torch.Tensor) -> torch.Tensor:
    """Weight [outputs, inputs] as the kernels read it: [panels, inputs, panel width], filled up
    with zeros."""
    width = quantized_linear.panel_width()
    num_outputs, num_inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -num_outputs % width))
    return padded.view(-1, width, num_inputs).transpose(1, 2).contiguous()


def weight_of_panels(panels: torch.Tensor, bias: torch.Tensor | None, num_outputs: int) -> Weight:
    """The weight as kernels are given it; the tensors must outlive it and stay where they are."""
    width, inputs = quantized_linear.panel_width(), panels.shape[1]
    pointers = (
        address("panels", panels, (-(-num_outputs // width), inputs, width)),
        optional_address("bias", bias, (num_outputs,)),
    )
    return Weight(*pointers, num_outputs, inputs, 0, TYPE_PANELS)


def panel_linear(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """x [..., inputs] @ weight.T + bias, fp32 [..., outputs]. A row's result is the same in every
    batch, bit for bit.

    Raises ValueError for an x of another width or dtype.
    """
    if x.shape[-1] != weight.inputs or x.dtype != torch.float32:
        raise ValueError(
            f"x must be fp32 of width {weight.inputs}, got {x.dtype} of shape {tuple(x.shape)}"
        )
    output = x.new_empty(x.numel() // weight.inputs, weight.outputs)
    quantized_linear.linear(x.reshape(-1, weight.inputs).contiguous(), weight, output)
    return output.view(*x.shape[:-1], weight.outputs)
