"""Linear layers on fp32 weights in panels."""

import torch
from torch import nn

from smartspec.engine.kernels.cpu.panel_linear import panel_linear, to_panels, weight_of_panels
from smartspec.engine.kernels.cpu.quantized_linear import Weight


class PanelLinear(nn.Module):
    """x [..., in_features] -> x @ weight.T + bias [..., out_features], fp32 on CPU; the plain
    weight is not kept."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        """weight: [out_features, in_features]; bias: [out_features] or None."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else bias.detach().clone()
        self.panels = to_panels(weight.detach())

    @property
    def weight(self) -> torch.Tensor:
        """Shape and dtype of the weight, for models that read it; it holds no values, computing
        with it raises."""
        return torch.empty(self.out_features, self.in_features, device="meta")

    @property
    def kernel_weights(self) -> list[Weight]:
        """The weights as kernels are given them; they hold addresses of this module's tensors."""
        return [weight_of_panels(self.panels, self.bias, self.out_features)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return panel_linear(x, *self.kernel_weights)
