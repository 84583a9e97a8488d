"""Muon (arXiv 2502.16982): momentum whose update is made orthogonal, for matrices.

torch.optim.Muon always multiplies in bfloat16. A processor that converts every number of it takes
forty times as long.
"""

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that pushes singular values towards 1
NUM_ITERATIONS = 5
MOMENTUM = 0.95


class Muon(torch.optim.Optimizer):
    """dtype: of the products. Updates are as large as AdamW's, so that one learning rate serves
    both."""

    def __init__(
        self, params: list[torch.nn.Parameter], lr: float, weight_decay: float, dtype: torch.dtype
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Move every matrix that has a gradient. closure: not used."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group["lr"], group["weight_decay"])

    def _move(
        self, weight: torch.nn.Parameter, gradient: torch.Tensor, lr: float, weight_decay: float
    ) -> None:
        momentum = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))
        momentum.lerp_(gradient, 1 - MOMENTUM)
        # Nesterov's look ahead
        update = orthogonal(gradient.lerp(momentum, MOMENTUM).to(self._dtype))
        weight.mul_(1 - lr * weight_decay)
        weight.add_(update, alpha=-lr * 0.2 * max(weight.shape) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """About U V^T of matrix = U S V^T: its singular values are near 1."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=1e-7)  # no singular value is above 1
    a, b, c = COEFFICIENTS
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x
